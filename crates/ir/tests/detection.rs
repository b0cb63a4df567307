//! Operations of detectors against values worked out by hand.

use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::{AnchorLevel, AnchorPlacement, Anchors};
use bessemer_ir::ops::detection::boxes::{AxisOrder, BoxClip, BoxCode, DecodeBoxes, EncodeBoxes};
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::ops::detection::matching::{ForcedMatch, MatchBoxes};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiAlignGrad, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::detection::sample::{PackRows, SampleFill, SampleLabels, SampleOrder, SampleRows, Sampler};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::index::TopK;
use bessemer_ir::ops::{Cost, Op};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, Graph, Role, Shape, TensorType};

fn f32s(shape: impl Into<Shape>, data: &[f64]) -> Tensor {
    Tensor::new(TensorType::f32(shape), data.to_vec())
}

fn i32s(shape: impl Into<Shape>, data: &[f64]) -> Tensor {
    Tensor::new(TensorType::new(DType::I32, shape), data.to_vec())
}

fn scalars<const N: usize>(values: [f64; N]) -> [Scalar; N] {
    values.map(Scalar)
}

fn evaluate(op: impl Into<Op>, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let op = op.into();
    let types: Vec<&TensorType> = inputs.iter().map(|t| &t.ty).collect();
    let outputs = op.rule().infer(&types).unwrap_or_else(|problem| panic!("{op}: {problem}"));
    let results = op.rule().evaluate(&inputs.iter().collect::<Vec<_>>(), &outputs);
    results.into_iter().map(|tensor| tensor.data).collect()
}

#[track_caller]
fn assert_close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(close, "{got:?}, expected {expected:?}");
}

#[track_caller]
fn refuses(op: impl Into<Op>, inputs: &[TensorType], problem: &str) {
    let op = op.into();
    match op.rule().infer(&inputs.iter().collect::<Vec<_>>()) {
        Ok(outputs) => panic!("{op} accepts {inputs:?} and gives {outputs:?}"),
        Err(error) => assert_eq!(error.to_string(), problem, "{op}"),
    }
}

fn types(shapes: &[(DType, &[usize])]) -> Vec<TensorType> {
    shapes.iter().map(|&(dtype, shape)| TensorType::new(dtype, shape)).collect()
}

/// Two rows and one column, a box of 4 x 2 and one beside its origin.
fn grid(placement: AnchorPlacement) -> Anchors {
    let boxes = vec![scalars([-2.0, -1.0, 2.0, 1.0]), scalars([0.0, 0.0, 1.0, 3.0])];
    let fine = AnchorLevel { grid: [2, 1], stride: scalars([8.0, 4.0]), boxes };
    let coarse =
        AnchorLevel { grid: [1, 2], stride: scalars([16.0, 16.0]), boxes: vec![scalars([-8.0, -8.0, 8.0, 8.0])] };
    Anchors { levels: vec![fine, coarse], placement }
}

#[test]
fn anchors_by_level_row_column_and_box() {
    let centre = [
        [0.0, 3.0, 4.0, 5.0],
        [2.0, 4.0, 3.0, 7.0],
        [0.0, 11.0, 4.0, 13.0],
        [2.0, 12.0, 3.0, 15.0],
        [0.0, 0.0, 16.0, 16.0],
        [16.0, 0.0, 32.0, 16.0],
    ];
    assert_close(&evaluate(grid(AnchorPlacement::Centre), &[])[0], centre.as_flattened());
    let corner = evaluate(grid(AnchorPlacement::Corner), &[]).remove(0);
    assert_close(&corner[..8], &[-2.0, -1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 3.0]);
    assert_close(&corner[8..12], &[-2.0, 7.0, 2.0, 9.0]);
    let op = Op::from(grid(AnchorPlacement::Centre));
    assert_eq!(op.to_string(), "anchors(levels=[2x1x2 every 8x4, 1x2x1 every 16x16], placement=centre)");

    let with = |change: &dyn Fn(&mut AnchorLevel)| {
        let mut anchors = grid(AnchorPlacement::Centre);
        change(&mut anchors.levels[1]);
        anchors
    };
    refuses(with(&|level| level.grid[0] = 0), &[], "level 1 has no boxes");
    refuses(with(&|level| level.stride[0] = Scalar(0.0)), &[], "level 1 must have positive strides");
    let infinite = with(&|level| level.boxes[0][2] = Scalar(f64::INFINITY));
    refuses(infinite, &[], "level 1 has a coordinate that is NaN or infinite");
    let none = Anchors { levels: Vec::new(), placement: AnchorPlacement::Centre };
    refuses(none, &[], "there must be at least one level");
    refuses(grid(AnchorPlacement::Centre), &types(&[(DType::F32, &[1])]), "takes no tensors");
}

const PLAIN: MatchBoxes = MatchBoxes {
    low: Scalar(0.25),
    high: Scalar(0.5),
    high_inclusive: true,
    forced: ForcedMatch::No,
    union_eps: Scalar(0.0),
};

/// Boxes of 10 x 10 whose IoU with the ground truth at the origin is 1, 1/2, 1/4 and 0, one without area.
fn row_of_boxes() -> Tensor {
    let boxes: [[f64; 4]; 5] = [
        [0.0, 0.0, 10.0, 10.0],
        [0.0, 0.0, 5.0, 10.0],
        [0.0, 0.0, 10.0, 2.5],
        [10.0, 0.0, 20.0, 10.0],
        [3.0, 3.0, 3.0, 8.0],
    ];
    f32s([5, 4], boxes.as_flattened())
}

#[test]
fn thresholds_of_a_match() {
    let truth = f32s([1, 1, 4], &[0.0, 0.0, 10.0, 10.0]);
    let with = |op: MatchBoxes, count: f64| evaluate(op, &[row_of_boxes(), truth.clone(), i32s([1], &[count])]);
    assert_eq!(with(PLAIN, 1.0), [vec![0.0, 0.0, -2.0, -1.0, -2.0], vec![2.0]]);
    let exclusive = MatchBoxes { high_inclusive: false, ..PLAIN };
    assert_eq!(with(exclusive, 1.0), [vec![0.0, -2.0, -2.0, -1.0, -2.0], vec![1.0]]);
    let above = MatchBoxes { low: Scalar(0.26), ..PLAIN };
    assert_eq!(with(above, 1.0), [vec![0.0, 0.0, -1.0, -1.0, -2.0], vec![2.0]]);
    assert_eq!(with(PLAIN, 0.0), [vec![-1.0, -1.0, -1.0, -1.0, -2.0], vec![0.0]], "no ground truth");
    let larger_union = MatchBoxes { union_eps: Scalar(1.0), ..PLAIN };
    assert_eq!(with(larger_union, 1.0)[0][..2], [0.0, -2.0], "50 / 101 is below one half");
}

/// Ground truths 0 and 1 are the same and have no box of a high IoU, 2 touches a box, 3 is far away.
#[test]
fn forced_matches() {
    let truths = [[0.0, 0.0, 2.0, 10.0], [0.0, 0.0, 2.0, 10.0], [20.0, 0.0, 22.0, 10.0], [90.0, 90.0, 95.0, 95.0]];
    let boxes = [[5.0, 5.0, 5.0, 9.0], [0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 10.0], [10.0, 0.0, 20.0, 10.0]];
    let inputs = [f32s([4, 4], boxes.as_flattened()), f32s([1, 4, 4], truths.as_flattened()), i32s([1], &[4.0])];
    let forced = |forced| evaluate(MatchBoxes { forced, ..PLAIN }, &inputs).remove(0);
    assert_eq!(forced(ForcedMatch::No), [-2.0, -1.0, -1.0, -1.0]);
    // The first box with an area is the best of all, also of those that it does not overlap.
    assert_eq!(forced(ForcedMatch::BestOnce), [-2.0, 0.0, -1.0, -1.0]);
    assert_eq!(forced(ForcedMatch::AllTies), [-2.0, 0.0, 0.0, -1.0]);
    let reversed: Vec<f64> = truths.iter().rev().flatten().copied().collect();
    let inputs = [inputs[0].clone(), f32s([1, 4, 4], &reversed), i32s([1], &[3.0])];
    let forced = |forced| evaluate(MatchBoxes { forced, ..PLAIN }, &inputs).remove(0);
    assert_eq!(forced(ForcedMatch::BestOnce), [-2.0, 0.0, -1.0, -1.0], "only valid ground truths take boxes");
    assert_eq!(forced(ForcedMatch::AllTies), [-2.0, 2.0, 2.0, -1.0]);
}

#[test]
fn equal_ious_go_to_the_first_ground_truth() {
    let truths = [[0.0, 0.0, 10.0, 20.0], [0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 10.0]];
    let boxes = f32s([1, 1, 4], &[0.0, 0.0, 10.0, 10.0]);
    let matched = evaluate(PLAIN, &[boxes, f32s([1, 3, 4], truths.as_flattened()), i32s([1], &[3.0])]);
    assert_eq!(matched, [vec![1.0], vec![1.0]]);
}

#[test]
fn what_matches_refuse() {
    let fits: [(DType, &[usize]); 3] = [(DType::F32, &[7, 4]), (DType::F32, &[2, 3, 4]), (DType::I32, &[2])];
    let with = |index: usize, ty: (DType, &'static [usize])| {
        let mut all = fits;
        all[index] = ty;
        types(&all)
    };
    let op = Op::from(PLAIN);
    let outputs = op.rule().infer(&types(&fits).iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(outputs, types(&[(DType::I32, &[2, 7]), (DType::I32, &[2])]));
    refuses(PLAIN, &types(&fits[..2]), "takes boxes, ground truths and their number");
    refuses(
        PLAIN,
        &with(0, (DType::F32, &[3, 7, 4])),
        "the reference boxes must be [N, 4] or [B, N, 4], not [3, 7, 4]",
    );
    refuses(PLAIN, &with(0, (DType::Bf16, &[7, 4])), "takes f32 as the reference boxes, not bf16");
    refuses(PLAIN, &with(1, (DType::F32, &[2, 3, 5])), "the ground truths must be [B, G, 4], not [2, 3, 5]");
    refuses(PLAIN, &with(2, (DType::I32, &[3])), "the number of ground truths must be [B], not [3]");
    let crossed = MatchBoxes { low: Scalar(0.6), ..PLAIN };
    refuses(crossed, &types(&fits), "the thresholds must be 0 <= low <= high <= 1, not 0.6 and 0.5");
}

#[test]
#[should_panic(expected = "the count 2 is outside 0..=1")]
fn more_ground_truths_than_there_is_room_for() {
    evaluate(PLAIN, &[row_of_boxes(), f32s([1, 1, 4], &[0.0; 4]), i32s([1], &[2.0])]);
}

/// A reference box of 4 x 8 with its centre at (2, 4), and one of 8 x 16 with its centre at (6, 9).
#[test]
fn codes_by_hand() {
    let inputs = |matches: &[f64]| {
        let boxes = f32s([2, 4], &[0.0, 0.0, 4.0, 8.0, 0.0, 0.0, 1.0, 1.0]);
        [boxes, f32s([1, 1, 4], &[2.0, 1.0, 10.0, 17.0]), i32s([1, 2], matches)]
    };
    let encoded = |code| evaluate(EncodeBoxes { code }, &inputs(&[0.0, -2.0])).remove(0);
    let two = 2f64.ln();
    let plain = BoxCode::plain(AxisOrder::Xy);
    assert_close(&encoded(plain), &[1.0, 0.625, two, two, 0.0, 0.0, 0.0, 0.0]);
    assert_close(&encoded(BoxCode::plain(AxisOrder::Yx))[..4], &[0.625, 1.0, two, two]);
    let weights = scalars([10.0, 20.0, 5.0, 7.0]);
    let weighted = BoxCode { weights, ..plain };
    assert_close(&encoded(weighted)[..4], &[10.0, 12.5, 5.0 * two, 7.0 * two]);
    assert_close(&encoded(BoxCode { order: AxisOrder::Yx, ..weighted })[..4], &[12.5, 10.0, 7.0 * two, 5.0 * two]);
    // Sides of 5 x 9 and 9 x 17, centres at (2.5, 4.5) and (6.5, 9.5).
    let legacy = BoxCode { legacy: true, ..plain };
    assert_close(&encoded(legacy)[..4], &[4.0 / 5.0, 5.0 / 9.0, (9f64 / 5.0).ln(), (17f64 / 9.0).ln()]);
    let eps = BoxCode { eps: Scalar(1.0), ..plain };
    assert_close(&encoded(eps)[..4], &[4.0 / 5.0, 5.0 / 9.0, (9f64 / 5.0).ln(), (17f64 / 9.0).ln()]);

    let decode = |code, max_growth: Option<f64>, clip, codes: &[f64]| {
        let op = DecodeBoxes { code, max_growth: max_growth.map(Scalar), clip };
        let mut all = vec![f32s([1, 1, 4], codes), f32s([1, 4], &[0.0, 0.0, 4.0, 8.0])];
        if clip != BoxClip::No {
            all.push(f32s([1, 2], &[12.0, 9.0]));
        }
        evaluate(op, &all).remove(0)
    };
    for code in [plain, weighted, BoxCode { order: AxisOrder::Yx, ..weighted }, legacy] {
        assert_close(&decode(code, None, BoxClip::No, &encoded(code)[..4]), &[2.0, 1.0, 10.0, 17.0]);
    }
    let codes = encoded(plain);
    assert_close(&decode(plain, None, BoxClip::Size, &codes[..4]), &[2.0, 1.0, 9.0, 12.0]);
    assert_close(&decode(plain, None, BoxClip::SizeMinusOne, &codes[..4]), &[2.0, 1.0, 8.0, 11.0]);
    assert_close(&decode(plain, None, BoxClip::Size, &[-1.0, 0.0, 0.0, 0.0]), &[0.0, 0.0, 0.0, 8.0]);
    assert_close(&decode(plain, Some(two), BoxClip::No, &[0.0, 0.0, 9.0, 9.0]), &[-2.0, -4.0, 6.0, 12.0]);
}

#[test]
fn codes_of_several_columns_and_images() {
    let op = DecodeBoxes { code: BoxCode::plain(AxisOrder::Xy), max_growth: None, clip: BoxClip::No };
    let shift = |x: f64| [x, 0.0, 0.0, 0.0];
    let codes = [shift(0.0), shift(1.0), shift(2.0), shift(3.0)];
    let boxes = [[0.0, 0.0, 1.0, 1.0], [10.0, 0.0, 12.0, 1.0]];
    let codes = f32s([2, 1, 2, 4], codes.as_flattened());
    let own = evaluate(op, &[codes.clone(), f32s([2, 1, 4], boxes.as_flattened())]).remove(0);
    assert_close(&own[..8], &[0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 2.0, 1.0]);
    assert_close(&own[8..], &[14.0, 0.0, 16.0, 1.0, 16.0, 0.0, 18.0, 1.0]);
    let shared = evaluate(op, &[codes, f32s([1, 4], &boxes[0])]).remove(0);
    assert_close(&shared[8..], &[2.0, 0.0, 3.0, 1.0, 3.0, 0.0, 4.0, 1.0]);
}

#[test]
fn what_codes_refuse() {
    let code = BoxCode::plain(AxisOrder::Xy);
    let encode = EncodeBoxes { code };
    let fits: [(DType, &[usize]); 3] = [(DType::F32, &[7, 4]), (DType::F32, &[2, 3, 4]), (DType::I32, &[2, 7])];
    refuses(encode, &types(&fits[..2]), "takes reference boxes, ground truths and a match");
    let other = [fits[0], fits[1], (DType::I32, &[2, 8][..])];
    refuses(encode, &types(&other), "the reference boxes must be [N, 4] or [B, N, 4], not [7, 4]");
    let other = [fits[0], fits[1], (DType::I32, &[3, 7][..])];
    refuses(encode, &types(&other), "the match must be [B, N], not [3, 7]");
    let none = EncodeBoxes { code: BoxCode { weights: scalars([1.0, 1.0, 0.0, 1.0]), ..code } };
    refuses(none, &types(&fits), "the weights of a box code must be positive");
    let decode = |clip| DecodeBoxes { code, max_growth: None, clip };
    let fits: [(DType, &[usize]); 3] = [(DType::F32, &[2, 7, 3, 4]), (DType::F32, &[2, 7, 4]), (DType::F32, &[2, 2])];
    refuses(decode(BoxClip::No), &types(&fits), "takes codes and reference boxes");
    refuses(decode(BoxClip::Size), &types(&fits[..2]), "takes codes, reference boxes and image sizes");
    let other = [fits[0], fits[1], (DType::F32, &[3, 2][..])];
    refuses(decode(BoxClip::Size), &types(&other), "the image sizes must be [B, 2], not [3, 2]");
    let flat = [(DType::F32, &[7, 4][..]), fits[1]];
    refuses(decode(BoxClip::No), &types(&flat), "the codes must be [B, N, 4] or [B, N, K, 4], not [7, 4]");
}

#[test]
#[should_panic(expected = "match 1 is beyond the 1 ground truths")]
fn a_match_beyond_the_ground_truths() {
    let code = BoxCode::plain(AxisOrder::Xy);
    let boxes = f32s([1, 4], &[0.0, 0.0, 1.0, 1.0]);
    evaluate(EncodeBoxes { code }, &[boxes, f32s([1, 1, 4], &[0.0; 4]), i32s([1, 1], &[1.0])]);
}

#[test]
fn largest_elements() {
    let nan = f64::NAN;
    let x = f32s([2, 4], &[1.0, 3.0, 3.0, 2.0, nan, f64::NEG_INFINITY, -0.0, 0.0]);
    let [values, positions] = &evaluate(TopK { k: 3, axes: 1 }, std::slice::from_ref(&x))[..] else {
        panic!("two outputs")
    };
    assert_eq!(values, &[3.0, 3.0, 2.0, 0.0, 0.0, f64::NEG_INFINITY]);
    assert_eq!(positions, &[1.0, 2.0, 3.0, 2.0, 3.0, 1.0]);
    let all = evaluate(TopK { k: 8, axes: 2 }, std::slice::from_ref(&x));
    assert!(all[0][7].is_nan(), "NaN comes last");
    assert_eq!(all[1], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(all[2], [1.0, 2.0, 3.0, 0.0, 2.0, 3.0, 1.0, 0.0]);
    let of = |shape: &'static [usize]| types(&[(DType::F32, shape)]);
    refuses(TopK { k: 5, axes: 1 }, &of(&[2, 4]), "k must be in 1..=4, not 5");
    refuses(TopK { k: 0, axes: 2 }, &of(&[2, 4]), "k must be in 1..=8, not 0");
    refuses(TopK { k: 1, axes: 3 }, &of(&[2, 4]), "axes must be 1 or 2, not 3");
    refuses(TopK { k: 1, axes: 2 }, &of(&[4]), "takes a tensor of at least 2 axes");
    refuses(TopK { k: 1, axes: 1 }, &types(&[(DType::I32, &[4])]), "takes one f32 tensor");
}

/// Rows, groups, scores and number of what is kept of one image.
fn kept(op: &Suppress, boxes: &[[f64; 4]], scores: &[f64], more: &[Tensor]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let n = boxes.len();
    let mut inputs = vec![f32s([1, n, 4], boxes.as_flattened()), f32s([1, n], scores)];
    inputs.extend_from_slice(more);
    let [rows, groups, scores, count] = evaluate(op.clone(), &inputs).try_into().expect("four outputs");
    let count = count[0] as usize;
    assert!(
        [&rows, &groups, &scores].iter().all(|list| list[count..].iter().all(|&x| x == 0.0)),
        "zeros behind the last"
    );
    let cut = |list: Vec<f64>| list[..count].to_vec();
    (cut(rows), cut(groups), cut(scores))
}

const HALF: Suppression = Suppression::Hard { iou: Scalar(0.5) };

/// Boxes of 10 x 10; the IoU of 0 and 1 is exactly one half, that of 0 and 2 more, 3 touches 0.
const SQUARES: [[f64; 4]; 4] =
    [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0], [0.0, 0.0, 10.0, 9.0], [10.0, 0.0, 20.0, 10.0]];

#[test]
fn hard_suppression() {
    let one = Suppress::new(HALF, 10);
    let scores = [0.9, 0.5, 0.6, 0.5];
    assert_eq!(kept(&one, &SQUARES, &scores, &[]).0, [0.0, 1.0, 3.0], "at the threshold nothing is dropped");
    let stricter = Suppress::new(Suppression::Hard { iou: Scalar(0.49) }, 10);
    assert_eq!(kept(&stricter, &SQUARES, &scores, &[]).0, [0.0, 3.0]);
    assert_eq!(kept(&Suppress::new(HALF, 2), &SQUARES, &scores, &[]).0, [0.0, 1.0]);
    let floor = Suppress { score_floor: Some(Scalar(0.5)), ..one.clone() };
    assert_eq!(kept(&floor, &SQUARES, &scores, &[]).0, [0.0], "the floor itself is not above the floor");
    let nan = [f64::NAN, 0.5, f64::NEG_INFINITY, 0.5];
    assert_eq!(kept(&one, &SQUARES, &nan, &[]).0, [1.0, 3.0]);
    let large = Suppress { min_size: Some(Scalar(9.0)), ..one.clone() };
    assert_eq!(kept(&large, &SQUARES, &[0.1, 0.9, 0.2, 0.3], &[]).0, [3.0, 2.0]);
    assert_eq!(kept(&one, &SQUARES, &scores, &[i32s([1], &[2.0])]).0, [0.0, 1.0]);
    assert_eq!(kept(&one, &SQUARES, &scores, &[i32s([1], &[0.0])]).0, [0.0; 0]);

    let by_label = Suppress { groups: BoxGroups::Labels, ..one.clone() };
    let labels = i32s([1, 4], &[7.0, 7.0, -3.0, 7.0]);
    let (rows, groups, values) = kept(&by_label, &SQUARES, &scores, &[labels]);
    assert_eq!((rows, groups), (vec![0.0, 2.0, 1.0, 3.0], vec![7.0, -3.0, 7.0, 7.0]));
    assert_eq!(values, [0.9, 0.6, 0.5, 0.5]);
    let by_range = Suppress { groups: BoxGroups::Ranges(vec![1, 1, 4]), ..one };
    let (rows, groups, _) = kept(&by_range, &SQUARES, &scores, &[]);
    assert_eq!((rows, groups), (vec![0.0, 2.0, 3.0], vec![0.0, 2.0, 2.0]), "2 drops 1 in its own range");
}

/// Boxes of pixels 0 to 4 and 5 to 9 have sides of 5 and do not overlap; 0 to 4 and 4 to 8 share one column.
#[test]
fn legacy_sides_count_pixels() {
    let iou = |value: f64| Suppress { legacy: true, ..Suppress::new(Suppression::Hard { iou: Scalar(value) }, 3) };
    let at = |x: f64| [x, 0.0, x + 4.0, 4.0];
    assert_eq!(kept(&iou(0.0), &[at(0.0), at(5.0)], &[0.9, 0.8], &[]).0, [0.0, 1.0]);
    let share = 5.0 / 45.0;
    assert_eq!(kept(&iou(share - 1e-9), &[at(0.0), at(4.0)], &[0.9, 0.8], &[]).0, [0.0]);
    assert_eq!(kept(&iou(share + 1e-9), &[at(0.0), at(4.0)], &[0.9, 0.8], &[]).0, [0.0, 1.0]);
    let plain = Suppress::new(Suppression::Hard { iou: Scalar(0.0) }, 3);
    assert_eq!(kept(&plain, &[at(0.0), at(4.0)], &[0.9, 0.8], &[]).0, [0.0, 1.0], "without it they touch");
}

#[test]
fn suppression_of_columns() {
    let op = Suppress { groups: BoxGroups::Columns, ..Suppress::new(HALF, 5) };
    let boxes = f32s([1, 2, 2, 4], [SQUARES[0], SQUARES[3], SQUARES[2], SQUARES[2]].as_flattened());
    let results = evaluate(op, &[boxes, f32s([1, 2, 2], &[0.8, 0.7, 0.75, 0.7])]);
    assert_eq!(results[0], [0.0, 0.0, 1.0, 0.0, 0.0], "row 1 is dropped in column 0");
    assert_eq!(results[1], [0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(results[2], [0.8, 0.7, 0.7, 0.0, 0.0]);
    assert_eq!(results[3], [3.0]);
}

#[test]
fn soft_suppression() {
    let soft = |floor: f64| Suppress::new(Suppression::Gaussian { sigma: Scalar(0.5), floor: Scalar(floor) }, 10);
    let scores = [0.9, 0.8, 0.1, 0.3];
    // 1 is decayed by one half, 2 by nine tenths and by its IoU of 5/9 with 1; 3 touches the others.
    let decay = |iou: f64| (-iou * iou / 0.5).exp();
    let (rows, _, values) = kept(&soft(0.001), &SQUARES, &scores, &[]);
    assert_eq!(rows, [0.0, 1.0, 3.0, 2.0]);
    assert_close(&values, &[0.9, 0.8 * decay(0.5), 0.3, 0.1 * decay(0.9) * decay(5.0 / 9.0)]);
    assert_eq!(kept(&soft(0.05), &SQUARES, &scores, &[]).0, [0.0, 1.0, 3.0], "below the floor");
    let by_label = Suppress { groups: BoxGroups::Labels, ..soft(0.2) };
    let labels = i32s([1, 4], &[5.0, 2.0, 2.0, 5.0]);
    let (rows, groups, values) = kept(&by_label, &SQUARES, &[0.5, 0.5, 0.3, 0.1], &[labels]);
    assert_eq!(
        (rows, groups),
        (vec![1.0, 0.0], vec![2.0, 5.0]),
        "equal scores by group; each pick drops what is below"
    );
    assert_eq!(values, [0.5, 0.5]);
}

#[test]
fn what_suppression_refuses() {
    let fits: [(DType, &[usize]); 4] =
        [(DType::F32, &[2, 7, 4]), (DType::F32, &[2, 7]), (DType::I32, &[2, 7]), (DType::I32, &[2])];
    let one = Suppress::new(HALF, 3);
    refuses(one.clone(), &types(&fits[..1]), "takes boxes, scores, and the number of rows if it varies");
    refuses(one.clone(), &types(&fits[..3]), "the number of rows must be [B], not [2, 7]");
    refuses(one.clone(), &types(&[fits[0], fits[3]]), "takes f32 as the scores, not i32");
    refuses(one.clone(), &types(&[fits[0], (DType::F32, &[2, 8])]), "the scores must be one for each box, not [2, 8]");
    let labels = Suppress { groups: BoxGroups::Labels, ..one.clone() };
    refuses(labels.clone(), &types(&fits[..2]), "takes boxes, scores, labels, and the number of rows if it varies");
    refuses(labels, &types(&[fits[0], fits[1], fits[3]]), "the labels must be [B, N], not [2]");
    let columns = Suppress { groups: BoxGroups::Columns, ..one.clone() };
    refuses(columns, &types(&fits[..2]), "the boxes must be [B, N, K, 4], not [2, 7, 4]");
    let ranges = |ends: &[usize]| Suppress { groups: BoxGroups::Ranges(ends.to_vec()), ..one.clone() };
    refuses(ranges(&[3, 6]), &types(&fits[..2]), "the ranges [3, 6] must be ascending and end at 7");
    refuses(ranges(&[5, 3, 7]), &types(&fits[..2]), "the ranges [5, 3, 7] must be ascending and end at 7");
    refuses(Suppress::new(HALF, 0), &types(&fits[..2]), "max_outputs must be at least 1");
    let iou = Suppress::new(Suppression::Hard { iou: Scalar(1.5) }, 1);
    refuses(iou, &types(&fits[..2]), "the IoU must be in 0..=1, not 1.5");
    let soft = |sigma, floor| Suppress::new(Suppression::Gaussian { sigma: Scalar(sigma), floor: Scalar(floor) }, 1);
    refuses(soft(0.0, 0.1), &types(&fits[..2]), "sigma must be positive, not 0");
    refuses(soft(0.5, -0.1), &types(&fits[..2]), "the floor must not be negative, it is -0.1");
}

const FIRST: Sampler = Sampler { total: 4, most_positives: 2, order: SampleOrder::First };

fn random(total: usize, most_positives: usize) -> Sampler {
    Sampler { total, most_positives, order: SampleOrder::Random { seed: 7, stream: 3 } }
}

#[test]
fn first_labels() {
    let labels = i32s([2, 7], &[0.0, 1.0, -1.0, 3.0, 1.0, 0.0, 0.0, -1.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0]);
    let sampled = evaluate(SampleLabels { sampler: FIRST }, std::slice::from_ref(&labels)).remove(0);
    assert_eq!(sampled[..7], [0.0, 1.0, -1.0, 3.0, -1.0, 0.0, -1.0], "two positives at most, then negatives");
    assert_eq!(sampled[7..], [-1.0, 0.0, 0.0, -1.0, 0.0, 0.0, -1.0], "negatives stand in for missing positives");
    let more = Sampler { total: 20, most_positives: 20, ..FIRST };
    assert_eq!(evaluate(SampleLabels { sampler: more }, std::slice::from_ref(&labels))[0], labels.data);
    let op = Op::from(SampleLabels { sampler: FIRST });
    assert_eq!(op.to_string(), "sample_labels(total=4, most_positives=2, first)");
}

/// Each candidate has its own key, in each image and step, and is chosen as often as others.
#[test]
fn random_labels() {
    let (batch, n) = (2, 40);
    let labels = i32s([batch, n], &vec![0.0; batch * n]);
    let sample = |step: f64| evaluate(SampleLabels { sampler: random(10, 0) }, &[labels.clone(), i32s([], &[step])]);
    let mut chosen = vec![0; batch * n];
    for step in 0..400 {
        let sampled = sample(f64::from(step)).remove(0);
        for image in sampled.chunks(n) {
            assert_eq!(image.iter().filter(|&&label| label == 0.0).count(), 10);
        }
        chosen.iter_mut().zip(&sampled).for_each(|(count, &label)| *count += i32::from(label == 0.0));
        assert_ne!(sampled[..n], sampled[n..]);
    }
    // 100 are expected, with a standard deviation of 9.
    assert!(chosen.iter().all(|count| (60..140).contains(count)), "{chosen:?}");
    let sampled = sample(5.0).remove(0);
    let key = |i: usize| bessemer_ir::philox::word(7, 5, 3, i as u64);
    for image in 0..batch {
        let own = image * n..(image + 1) * n;
        let largest = own.clone().filter(|&i| sampled[i] == 0.0).map(key).max().unwrap();
        assert!(own.filter(|&i| sampled[i] != 0.0).all(|i| key(i) > largest));
    }
}

#[test]
fn sampled_rows() {
    let matches = i32s([1, 8], &[-1.0, 4.0, -2.0, 0.0, -1.0, 2.0, 0.0, -2.0]);
    let sample = |total: usize, most_positives: usize, fill: SampleFill| {
        let sampler = Sampler { total, most_positives, ..FIRST };
        evaluate(SampleRows { sampler, fill }, std::slice::from_ref(&matches))
    };
    let enough = [vec![1.0, 3.0, 0.0, 4.0], vec![1.0, 1.0, 0.0, 0.0], vec![2.0, 2.0]];
    assert_eq!(sample(4, 2, SampleFill::Padding), enough);
    assert_eq!(sample(4, 2, SampleFill::Rest), enough);
    let padded = sample(6, 2, SampleFill::Padding);
    assert_eq!(padded[..2], [vec![1.0, 3.0, 0.0, 4.0, 0.0, 0.0], vec![1.0, 1.0, 0.0, 0.0, -1.0, -1.0]]);
    assert_eq!(padded[2], [2.0, 2.0]);
    let filled = sample(7, 2, SampleFill::Rest);
    assert_eq!(filled[0], [1.0, 3.0, 0.0, 4.0, 2.0, 5.0, 6.0], "the others by position");
    assert_eq!(filled[1], [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0], "ignored ones are background");
    assert_eq!(filled[2], [4.0, 3.0]);
    let all = sample(9, 9, SampleFill::Rest);
    assert_eq!(all[0], [1.0, 3.0, 5.0, 6.0, 0.0, 4.0, 2.0, 7.0, 0.0]);
    assert_eq!(all[1], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0]);
    let nothing = evaluate(SampleRows { sampler: FIRST, fill: SampleFill::Padding }, &[i32s([1, 2], &[-2.0, -2.0])]);
    assert_eq!(nothing, [vec![0.0; 4], vec![-1.0; 4], vec![0.0; 2]]);
    let drawn = SampleRows { sampler: random(4, 2), fill: SampleFill::Padding };
    let drawn = evaluate(drawn, &[i32s([1, 8], &[0.0; 8]), i32s([], &[9.0])]);
    let mut keys: Vec<usize> = (0..8).collect();
    keys.sort_by_key(|&i| bessemer_ir::philox::word(7, 9, 3, i as u64));
    assert_eq!(drawn[0], [keys[0] as f64, keys[1] as f64, 0.0, 0.0], "positives alone are too few");
}

#[test]
fn what_samples_refuse() {
    let fits: [(DType, &[usize]); 2] = [(DType::I32, &[2, 7]), (DType::I32, &[])];
    let labels = |sampler| SampleLabels { sampler };
    refuses(labels(FIRST), &types(&fits), "takes the labels alone");
    refuses(labels(random(4, 2)), &types(&fits[..1]), "takes the labels and the step");
    refuses(labels(random(4, 2)), &types(&[fits[0], (DType::I32, &[1])]), "the step must be [], not [1]");
    refuses(labels(FIRST), &types(&[(DType::F32, &[2, 7])]), "takes i32 as the labels, not f32");
    let rows = SampleRows { sampler: FIRST, fill: SampleFill::Rest };
    refuses(rows, &types(&[(DType::I32, &[7])]), "the match must be [B, N], not [7]");
    let problem = "there must be at most as many positives (5) as candidates in all (4), and one of these at least";
    refuses(labels(Sampler { most_positives: 5, ..FIRST }), &types(&fits[..1]), problem);
    let problem = "there must be at most as many positives (0) as candidates in all (0), and one of these at least";
    refuses(labels(Sampler { total: 0, most_positives: 0, ..FIRST }), &types(&fits[..1]), problem);
    refuses(PackRows { capacity: 0 }, &types(&fits[..1]), "the capacity must be at least 1");
    refuses(PackRows { capacity: 3 }, &types(&fits), "takes flags");
}

#[test]
fn packed_rows() {
    let flags = i32s([3, 4], &[0.0, 1.0, -1.0, 2.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
    let pack = |capacity: usize| evaluate(PackRows { capacity }, std::slice::from_ref(&flags));
    let rows = vec![1.0, 3.0, 8.0, 11.0, 0.0, 0.0];
    assert_eq!(pack(6), [vec![0.0, 0.0, 2.0, 2.0, 0.0, 0.0], rows, vec![4.0]]);
    assert_eq!(pack(3), [vec![0.0, 0.0, 2.0], vec![1.0, 3.0, 8.0], vec![3.0]], "the last one is left out");
}

fn roi_align(size: [usize; 2], samples: RoiSamples, border: RoiBorder, strides: &[f64]) -> RoiAlign {
    let strides = strides.iter().copied().map(Scalar).collect();
    RoiAlign { size, samples, border, levels: RoiLevels::standard(1e-6), strides }
}

/// Means of bins along x on a map of four pixels, 5, 1, 4 and 9, which all its lines have.
fn along_x(bins: usize, samples: RoiSamples, border: RoiBorder, [low, high]: [f64; 2]) -> Vec<f64> {
    let map = f32s([1, 2, 4, 1], &[5.0, 1.0, 4.0, 9.0, 5.0, 1.0, 4.0, 9.0]);
    let boxes = f32s([1, 4], &[low, 0.0, high, 1.0]);
    evaluate(roi_align([1, bins], samples, border, &[1.0]), &[map, boxes, i32s([1], &[0.0])]).remove(0)
}

#[test]
fn samples_of_regions() {
    let fixed = RoiSamples::Fixed;
    for border in [RoiBorder::Torch, RoiBorder::Clamp] {
        let mean = |bins, samples, box_| along_x(bins, samples, border, box_);
        assert_close(&mean(1, fixed(1), [0.0, 2.0]), &[1.0]);
        assert_close(&mean(2, fixed(1), [0.0, 2.0]), &[3.0, 2.5]);
        assert_close(&mean(1, fixed(2), [0.0, 2.0]), &[2.75]);
        assert_close(
            &mean(1, RoiSamples::Adaptive, [0.0, 2.5]),
            &[(5.0 * 7.0 / 12.0 + 5.0 / 12.0 + 1.75 + 4.0 + 5.0 / 12.0) / 3.0],
        );
        assert_close(&mean(2, fixed(1), [1.0, 5.0]), &[4.0, 9.0]);
    }
}

#[test]
fn regions_at_the_border() {
    let fixed = RoiSamples::Fixed(1);
    // Samples at -3, -1, 1 and 3, then at 1, 3, 5 and 7.
    assert_close(&along_x(4, fixed, RoiBorder::Torch, [-4.0, 4.0]), &[0.0, 5.0, 1.0, 9.0]);
    assert_close(&along_x(4, fixed, RoiBorder::Clamp, [-4.0, 4.0]), &[17.0, 9.0, 1.0, 9.0]);
    assert_close(&along_x(4, fixed, RoiBorder::Torch, [0.0, 8.0]), &[1.0, 9.0, 0.0, 0.0]);
    assert_close(&along_x(4, fixed, RoiBorder::Clamp, [0.0, 8.0]), &[1.0, 9.0, 9.0, 9.0]);
    // A side below one pixel.
    assert_close(&along_x(1, fixed, RoiBorder::Torch, [1.0, 1.5]), &[2.5]);
    assert_close(&along_x(1, fixed, RoiBorder::Clamp, [1.0, 1.5]), &[1.75]);
}

/// A linear map is reproduced at the positions of the samples, which are those of no half pixel.
#[test]
fn regions_of_several_images_and_channels() {
    let value = |i: usize| [100 * (i / 60) + 10 * (i / 12 % 5) + i / 2 % 6, 0][i % 2] as f64;
    let map: Vec<f64> = (0..120).map(value).collect();
    let op = roi_align([2, 1], RoiSamples::Fixed(2), RoiBorder::Torch, &[2.0]);
    let boxes = f32s([2, 4], &[2.0, 0.0, 6.0, 8.0, 0.0, 4.0, 8.0, 6.0]);
    let features = evaluate(op.clone(), &[f32s([2, 5, 6, 2], &map), boxes, i32s([2], &[1.0, 0.0])]).remove(0);
    assert_close(&features, &[112.0, 0.0, 132.0, 0.0, 24.5, 0.0, 29.5, 0.0]);
    let printed =
        "roi_align(size=[2, 1], samples=2, border=torch, strides=[2.0] from level 2, level 4 at 224, eps=1e-6)";
    assert_eq!(Op::from(op).to_string(), printed);
}

#[test]
fn levels_of_regions() {
    let strides = [4.0, 8.0, 16.0, 32.0];
    let op = |eps: f64| RoiAlign {
        levels: RoiLevels::standard(eps),
        ..roi_align([1, 1], RoiSamples::Adaptive, RoiBorder::Torch, &strides)
    };
    let map_of = |side: f64| op(0.0).map_of([10.0, 20.0, 10.0 + 2.0 * side, 20.0 + side / 2.0]);
    let sides = [0.0, 10.0, 111.9, 112.0, 223.9, 224.0, 447.9, 448.0, 5000.0];
    assert_eq!(sides.map(map_of), [0, 0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(op(0.0).map_of([5.0, 5.0, 3.0, 9.0]), 0, "a negative area");
    let nearly = [0.0, 0.0, 224.0, 223.9999];
    assert_eq!([op(0.0).map_of(nearly), op(1e-6).map_of(nearly)], [1, 2]);
    let maps = [1.0, 2.0, 3.0, 4.0].map(|x| f32s([1, 2, 2, 1], &[x; 4]));
    let inputs =
        [&maps[..], &[f32s([2, 4], &[0.0, 0.0, 8.0, 8.0, 0.0, 0.0, 30.0, 2000.0]), i32s([2], &[0.0, 0.0])]].concat();
    let clamped = RoiAlign { border: RoiBorder::Clamp, ..op(1e-6) };
    assert_close(&evaluate(clamped, &inputs)[0], &[1.0, 3.0]);
}

#[test]
fn what_features_of_regions_refuse() {
    let fits: [(DType, &[usize]); 4] =
        [(DType::F32, &[2, 8, 9, 3]), (DType::F32, &[2, 4, 5, 3]), (DType::F32, &[7, 4]), (DType::I32, &[7])];
    let op = roi_align([7, 7], RoiSamples::Fixed(2), RoiBorder::Torch, &[4.0, 8.0]);
    refuses(op.clone(), &types(&fits[..3]), "takes 2 maps, boxes and the image of each box");
    let odd = "takes maps [2, H, W, 3] of one float element type";
    refuses(op.clone(), &types(&[fits[0], (DType::F32, &[2, 4, 5, 4]), fits[2], fits[3]]), odd);
    refuses(op.clone(), &types(&[fits[0], (DType::Bf16, &[2, 4, 5, 3]), fits[2], fits[3]]), odd);
    refuses(op.clone(), &types(&[fits[0], (DType::F32, &[2, 0, 5, 3]), fits[2], fits[3]]), odd);
    let images = "the image of each box must be [R], not [6]";
    refuses(op.clone(), &types(&[fits[0], fits[1], fits[2], (DType::I32, &[6])]), images);
    let none = RoiAlign { samples: RoiSamples::Fixed(0), ..op.clone() };
    refuses(none, &types(&fits), "a bin must have at least one sample");
    refuses(RoiAlign { size: [7, 0], ..op.clone() }, &types(&fits), "there must be at least one bin");
    refuses(RoiAlign { strides: Vec::new(), ..op.clone() }, &types(&fits), "there must be 1 to 8 maps, not 0");
    let strides = vec![Scalar(4.0), Scalar(0.0)];
    refuses(RoiAlign { strides, ..op.clone() }, &types(&fits), "strides must be positive");
    let grad = RoiAlignGrad { roi_align: op, batch: 2, maps: vec![[8, 9]] };
    let inputs = types(&[(DType::F32, &[7, 7, 7, 3]), fits[2], fits[3]]);
    refuses(grad.clone(), &inputs, "there must be a map for each stride, of some pixels");
    let grad = RoiAlignGrad { maps: vec![[8, 9], [4, 5]], ..grad };
    let short = "the gradient of the features must be one for each box and bin, not [6, 7, 7, 3]";
    refuses(grad, &types(&[(DType::F32, &[6, 7, 7, 3]), fits[2], fits[3]]), short);
}

/// Of a region of the first ground truth, of 8 x 8 at (10, 20), with a crop of 4 x 4 whose right half is inside of the object. The
/// second one has no area.
fn half_mask(op: MaskTargets, region: [f64; 4], number: f64) -> Vec<f64> {
    mask(op, [10.0, 20.0, 18.0, 28.0], region, number)
}

fn mask(op: MaskTargets, truth: [f64; 4], region: [f64; 4], number: f64) -> Vec<f64> {
    let mut crops = [0.0; 32];
    (0..16).filter(|i| i % 4 >= 2).for_each(|i| crops[i] = 255.0);
    let crops = Tensor::new(TensorType::new(DType::U8, [1, 2, 4, 4]), crops.to_vec());
    let truths = f32s([1, 2, 4], [truth, [0.0; 4]].as_flattened());
    let regions = f32s([1, 4], &region);
    evaluate(op, &[crops, truths, regions, i32s([1], &[0.0]), i32s([1], &[number])]).remove(0)
}

#[test]
fn masks_of_regions() {
    let whole = [10.0, 20.0, 18.0, 28.0];
    let shares = MaskTargets { size: 2, border: 2, threshold: None };
    let tall = [10.0, 20.0, 18.0, 32.0];
    let close = |got: Vec<f64>, expected: &[f64]| {
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}, expected {expected:?}");
    };
    // Samples at 1 and 3 of the crop, then at lines 1.5 and 4.5.
    close(half_mask(shares, whole, 0.0), &[0.0, 1.0, 0.0, 1.0]);
    close(half_mask(shares, tall, 0.0), &[0.0, 1.0, 0.0, 0.0]);
    close(half_mask(shares, [8.0, 21.0, 16.0, 27.0], 0.0), &[0.0, 1.0, 0.0, 1.0]);
    // Samples at 0.5, 1.5, 2.5 and 3.5: half of the padding at the far side alone.
    let fine = MaskTargets { size: 4, ..shares };
    let line = [0.0, 0.5, 1.0, 0.5];
    let expected = [line, line, line, line.map(|x| x / 2.0)];
    close(half_mask(fine, whole, 0.0), expected.as_flattened());
    close(half_mask(MaskTargets { border: 0, ..fine }, whole, 0.0), &[0.0, 0.5, 1.0, 1.0].repeat(4));
    let decided = MaskTargets { threshold: Some(Scalar(0.4)), ..fine };
    assert_eq!(half_mask(decided, whole, 0.0)[..4], [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(half_mask(decided, whole, 0.0)[12..], [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(half_mask(shares, whole, -1.0), [0.0; 4], "no ground truth");
    assert_eq!(half_mask(shares, whole, 1.0), [0.0; 4], "a ground truth without area");
    // So large that 1e-8 is nothing beside its sides: samples lie on pixels 1 and 3.
    let large = [0.0, 0.0, (1u32 << 30) as f64, (1u32 << 30) as f64];
    let certain = MaskTargets { size: 2, border: 0, threshold: Some(Scalar(1.0)) };
    assert_eq!(mask(certain, large, large, 0.0), [0.0, 1.0, 0.0, 1.0], "a share that equals the threshold");

    let fits: [(DType, &[usize]); 5] = [
        (DType::U8, &[2, 3, 9, 9]),
        (DType::F32, &[2, 3, 4]),
        (DType::F32, &[5, 4]),
        (DType::I32, &[5]),
        (DType::I32, &[5]),
    ];
    let changed = |number: usize, ty: (DType, &'static [usize])| {
        let mut fits = fits;
        fits[number] = ty;
        types(&fits)
    };
    refuses(shares, &changed(0, (DType::F32, &[2, 3, 9, 9])), "takes u8 as the crops, not f32");
    refuses(shares, &changed(0, (DType::U8, &[2, 3, 8, 9])), "the crops must be [B, G, M, M], not [2, 3, 8, 9]");
    let crops = "the ground truths must be [B, G, 4], one for each crop, not [2, 2, 4]";
    refuses(shares, &changed(1, (DType::F32, &[2, 2, 4])), crops);
    refuses(shares, &changed(4, (DType::I32, &[4])), "the ground truth of each region must be [P], not [4]");
    refuses(MaskTargets { size: 0, ..shares }, &types(&fits), "a mask must have at least one pixel");
}

/// A loss may read boxes that depend on parameters: the gradient ends there.
#[test]
fn targets_carry_no_gradient() {
    let mut g = Graph::new();
    let codes = g.input("codes", Role::Parameter, TensorType::f32([1, 2, 4])).unwrap();
    let boxes = g.input("boxes", Role::Feed, TensorType::f32([2, 4])).unwrap();
    let decode = DecodeBoxes { code: BoxCode::plain(AxisOrder::Xy), max_growth: None, clip: BoxClip::No };
    let decoded = g.push1(decode, &[codes, boxes]).unwrap();
    let product = g.mul(codes, decoded).unwrap();
    let loss = g.sum(product, &[0, 1, 2]).unwrap();
    let grad = bessemer_ir::autodiff::gradients(&mut g, loss, &[codes]).unwrap()[0];
    assert_eq!(g.ty(grad), g.ty(codes));
    let rule = Op::from(decode);
    assert_eq!(rule.rule().cost(&[g.ty(codes), g.ty(boxes)], &[g.ty(decoded).clone()]), Cost { flops: 40, bytes: 96 });
}
