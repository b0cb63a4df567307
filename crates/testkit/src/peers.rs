//! What other implementations compute: cases from fixtures that are made in `peers/`.

use crate::problem::{Tensors, bytes_of, values_of};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::{AnchorLevel, AnchorPlacement, Anchors};
use bessemer_ir::ops::detection::boxes::{AxisOrder, BoxClip, BoxCode, DecodeBoxes, EncodeBoxes};
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::ops::detection::matching::{ForcedMatch, MatchBoxes};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiAlignGrad, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::detection::sample::{SampleLabels, SampleOrder, Sampler};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::source::Constant;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Graph, GraphError, Role, TensorType, Value};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Of `peers/pytorch/make_detection_fixtures.py`.
const DETECTION: &str = include_str!("../fixtures/detection.json");

/// A graph, its inputs and what another implementation gives for them.
#[derive(Debug)]
pub struct PeerCase {
    /// Which implementation it is, and what is special.
    pub name: String,
    /// With an output `y0`, `y1`, ... for each result.
    pub graph: Graph,
    inputs: BTreeMap<String, Vec<f64>>,
    outputs: Vec<Vec<f64>>,
}

impl PeerCase {
    /// Inputs as they lie in memory.
    pub fn inputs(&self) -> Tensors {
        let dtype = |name: &String| self.graph.dtype(self.graph.find_input(name).expect("its own"));
        self.inputs.iter().map(|(name, data)| (name.clone(), bytes_of(dtype(name), data))).collect()
    }

    /// Compares what the reference kernels give, and no other rounding than that of `f64`, with the fixture.
    ///
    /// # Errors
    /// The first element that differs.
    pub fn check_reference(&self, tolerance: f64) -> Result<(), String> {
        let mut interpreter = Interpreter::new(&self.graph);
        self.inputs.iter().for_each(|(name, data)| interpreter.set(name, data));
        interpreter.run();
        self.check(tolerance, |name| interpreter.output(name).data.clone())
    }

    /// Compares the results of an executor with the fixture.
    ///
    /// # Errors
    /// The first element that differs.
    pub fn check_results(&self, tolerance: f64, results: &Tensors) -> Result<(), String> {
        let dtype = |name: &str| self.graph.dtype(self.graph.find_output(name).expect("its own"));
        self.check(tolerance, |name| values_of(dtype(name), &results[name]))
    }

    /// Integers are equal; numbers are no further apart than the share `tolerance` of the largest of their tensor.
    fn check(&self, tolerance: f64, result: impl Fn(&str) -> Vec<f64>) -> Result<(), String> {
        for (number, expected) in self.outputs.iter().enumerate() {
            let name = format!("y{number}");
            let actual = result(&name);
            if actual.len() != expected.len() {
                return Err(format!("{}: {name} has {} elements, not {}", self.name, actual.len(), expected.len()));
            }
            let value = self.graph.find_output(&name).expect("its own");
            let largest = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
            let allowed = if self.graph.dtype(value) == DType::F32 { tolerance * largest } else { 0.0 };
            // A distance that is NaN is no agreement.
            let agrees = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= allowed;
            if let Some(i) = actual.iter().zip(expected).position(|pair| !agrees(pair)) {
                return Err(format!("{}: {name}[{i}] is {}, expected {}", self.name, actual[i], expected[i]));
            }
        }
        Ok(())
    }
}

/// All cases of all fixtures.
///
/// # Panics
/// If a fixture has another form than its script gives it.
pub fn peer_cases() -> Vec<PeerCase> {
    let cases: Vec<Json> = serde_json::from_str(DETECTION).expect("the fixture is a list");
    let build = |case: &Json| detection_case(case).unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
    cases.iter().map(build).collect()
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(&[], Vec::as_slice)
}

fn numbers(json: &Json) -> Vec<f64> {
    list(json).iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn sizes(json: &Json) -> Vec<usize> {
    numbers(json).into_iter().map(|x| x as usize).collect()
}

fn size(json: &Json) -> usize {
    json.as_u64().expect("a size") as usize
}

fn scalar(json: &Json) -> Option<Scalar> {
    json.as_f64().map(Scalar)
}

fn scalars<const N: usize>(json: &Json) -> [Scalar; N] {
    numbers(json).try_into().map(|x: [f64; N]| x.map(Scalar)).expect("as many numbers")
}

fn detection_case(case: &Json) -> Result<PeerCase, GraphError> {
    let mut graph = Graph::new();
    let (mut inputs, mut values) = (BTreeMap::new(), Vec::new());
    for (number, input) in list(&case["inputs"]).iter().enumerate() {
        let dtype = match input["dtype"].as_str() {
            Some("i32") => DType::I32,
            Some("u8") => DType::U8,
            _ => DType::F32,
        };
        let name = format!("x{number}");
        values.push(graph.input(&name, Role::Feed, TensorType::new(dtype, sizes(&input["shape"])))?);
        inputs.insert(name, numbers(&input["data"]));
    }
    let results = match case["op"].as_str() {
        Some("anchors") => vec![graph.push1(anchors(case), &[])?],
        Some("targets") => targets(&mut graph, case, &values)?,
        Some("decode") => {
            let clip = BoxClip::Size;
            vec![
                graph
                    .push1(DecodeBoxes { code: code(case), max_growth: scalar(&case["max_growth"]), clip }, &values)?,
            ]
        }
        Some("suppress") => graph.push(suppress(case), &values)?,
        Some("detections") => detections(&mut graph, case, &values)?,
        Some("top_k") => graph.top_k(values[0], size(&case["k"]), 2)?,
        Some("sample_labels") => {
            let (total, most_positives) = (size(&case["total"]), size(&case["most_positives"]));
            let sampler = Sampler { total, most_positives, order: SampleOrder::First };
            graph.push(SampleLabels { sampler }, &values)?
        }
        Some("proposals") => proposals(&mut graph, case, &values)?,
        Some("roi_align") => roi_align(&mut graph, case, &values)?,
        Some("mask_targets") => {
            let (size, border) = (size(&case["size"]), size(&case["border"]));
            graph.push(MaskTargets { size, border, threshold: scalar(&case["threshold"]) }, &values)?
        }
        other => panic!("there is no operation {other:?}"),
    };
    for (number, &value) in results.iter().enumerate() {
        graph.output(&format!("y{number}"), value);
    }
    let outputs: Vec<Vec<f64>> = list(&case["outputs"]).iter().map(|output| numbers(&output["data"])).collect();
    assert_eq!(outputs.len(), results.len(), "{}: outputs", case["name"]);
    Ok(PeerCase { name: case["name"].as_str().expect("a name").to_string(), graph, inputs, outputs })
}

fn anchors(case: &Json) -> Anchors {
    let level = |level: &Json| AnchorLevel {
        grid: sizes(&level["grid"]).try_into().expect("rows and columns"),
        stride: [scalar(&level["stride"]).expect("a number"); 2],
        boxes: list(&level["boxes"]).iter().map(scalars).collect(),
    };
    Anchors { levels: list(&case["levels"]).iter().map(level).collect(), placement: AnchorPlacement::Centre }
}

fn code(case: &Json) -> BoxCode {
    BoxCode {
        order: if case["order"] == "yx" { AxisOrder::Yx } else { AxisOrder::Xy },
        weights: scalars(&case["weights"]),
        legacy: false,
        eps: scalar(&case["eps"]).unwrap_or(Scalar(0.0)),
    }
}

/// Match, number of positives and codes.
fn targets(g: &mut Graph, case: &Json, values: &[Value]) -> Result<Vec<Value>, GraphError> {
    let op = MatchBoxes {
        low: scalar(&case["low"]).expect("a number"),
        high: scalar(&case["high"]).expect("a number"),
        high_inclusive: true,
        forced: if case["forced"] == "best_once" { ForcedMatch::BestOnce } else { ForcedMatch::AllTies },
        union_eps: Scalar(0.0),
    };
    let matched = g.push(op, values)?;
    let codes = g.push1(EncodeBoxes { code: code(case) }, &[values[0], values[1], matched[0]])?;
    Ok(vec![matched[0], matched[1], codes])
}

fn suppress(case: &Json) -> Suppress {
    let suppression = match scalar(&case["iou"]) {
        Some(iou) => Suppression::Hard { iou },
        None => Suppression::Gaussian {
            sigma: scalar(&case["sigma"]).expect("a number"),
            floor: scalar(&case["floor"]).expect("a number"),
        },
    };
    let max_outputs = size(&case["max_outputs"]);
    Suppress {
        groups: BoxGroups::Labels,
        legacy: case["legacy"] == true,
        score_floor: scalar(&case["score_floor"]),
        min_size: scalar(&case["min_size"]),
        ..Suppress::new(suppression, max_outputs)
    }
}

/// From logits, codes, reference boxes and sizes of images: boxes, scores, labels, and their number.
fn detections(g: &mut Graph, case: &Json, values: &[Value]) -> Result<Vec<Value>, GraphError> {
    let [logits, codes, reference, sizes] = values[..] else { panic!("four inputs") };
    let points = size(&case["points"]);
    let top = g.top_k(logits, points, 2)?;
    let codes = g.gather(codes, top[1], 1, 1)?;
    let reference = g.gather(reference, top[1], 0, 0)?;
    let decode = DecodeBoxes { code: BoxCode::plain(AxisOrder::Yx), max_growth: None, clip: BoxClip::Size };
    let boxes = g.push1(decode, &[codes, reference, sizes])?;
    let scores = g.unary(UnaryKind::Sigmoid, top[0])?;
    let kept = g.push(suppress(case), &[boxes, scores, top[2]])?;
    let boxes = g.gather(boxes, kept[0], 1, 1)?;
    Ok(vec![boxes, kept[2], kept[1], kept[3]])
}

/// From logits `[B, A]`, codes, reference boxes and sizes of images: boxes, scores and their number. The best of each level are
/// decoded and suppressed.
fn proposals(g: &mut Graph, case: &Json, values: &[Value]) -> Result<Vec<Value>, GraphError> {
    let [logits, codes, reference, image_sizes] = values[..] else { panic!("four inputs") };
    let batch = g.shape(logits)[0];
    let (mut best, mut rows, mut ends, mut start) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for boxes in sizes(&case["levels"]) {
        let level = g.slice(logits, &[0, start], &[batch, start + boxes], &[1, 1])?;
        let k = boxes.min(size(&case["points"]));
        let top = g.top_k(level, k, 1)?;
        let first = g.constant(DType::I32, [], start as f64)?;
        best.push(top[0]);
        rows.push(g.add(top[1], first)?);
        ends.push(ends.last().unwrap_or(&0) + k);
        start += boxes;
    }
    let (best, rows) = (g.concat(&best, 1)?, g.concat(&rows, 1)?);
    let codes = g.gather(codes, rows, 1, 1)?;
    let reference = g.gather(reference, rows, 0, 0)?;
    let max_growth = Some(Scalar((1000.0f64 / 16.0).ln()));
    let decode = DecodeBoxes { code: BoxCode::plain(AxisOrder::Xy), max_growth, clip: BoxClip::Size };
    let boxes = g.push1(decode, &[codes, reference, image_sizes])?;
    let scores = g.unary(UnaryKind::Sigmoid, best)?;
    let suppress = Suppress { groups: BoxGroups::Ranges(ends), ..suppress(case) };
    let most = suppress.max_outputs;
    let kept = g.push(suppress, &[boxes, scores])?;
    let boxes = g.gather(boxes, kept[0], 1, 1)?;
    // Rows behind the last one are zeros.
    let data = (0..most).map(|row| Scalar(row as f64)).collect();
    let numbers = g.push1(Constant { dtype: DType::I32, shape: [1, most, 1].into(), data }, &[])?;
    let counts = g.reshape(kept[3], [batch, 1, 1])?;
    let is_kept = g.binary(BinaryKind::Lt, numbers, counts)?;
    let zero = g.constant(DType::F32, [], 0.0)?;
    Ok(vec![g.select(is_kept, boxes, zero)?, kept[2], kept[3]])
}

/// From maps, boxes, their images and the gradient of the features: features, and the gradients of the maps.
fn roi_align(g: &mut Graph, case: &Json, values: &[Value]) -> Result<Vec<Value>, GraphError> {
    let strides: Vec<Scalar> = numbers(&case["strides"]).into_iter().map(Scalar).collect();
    let canonical_size = scalar(&case["canonical_size"]).expect("a number");
    let eps = scalar(&case["eps"]).expect("a number");
    let op = RoiAlign {
        size: sizes(&case["size"]).try_into().expect("height and width"),
        samples: match size(&case["samples"]) {
            0 => RoiSamples::Adaptive,
            samples => RoiSamples::Fixed(samples),
        },
        border: RoiBorder::Torch,
        levels: RoiLevels { canonical_size, canonical_level: 4, eps, first: 2 },
        strides,
    };
    let (inputs, dy) = values.split_at(values.len() - 1);
    let maps = inputs[..op.strides.len()].iter().map(|&map| [g.shape(map)[1], g.shape(map)[2]]).collect();
    let grad = RoiAlignGrad { roi_align: op.clone(), batch: g.shape(inputs[0])[0], maps };
    let features = g.push(op, inputs)?;
    let grads = g.push(grad, &[dy, &inputs[inputs.len() - 2..]].concat())?;
    Ok([features, grads].concat())
}
