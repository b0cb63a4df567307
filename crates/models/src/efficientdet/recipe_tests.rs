//! Targets, losses and the parts of NVIDIA's form, against what the recipe's definitions give.

use super::config::LEVELS;
use super::*;
use crate::recipe_fixtures::{Expected, borrowed, drawn, drawn_bytes, joined_gradients, results};

const BATCH: usize = 3;
const CLASSES: usize = 3;

fn options() -> DetectorOptions {
    DetectorOptions {
        canvas: [128, 256],
        num_classes: CLASSES,
        max_objects: 3,
        edges: EdgeWeights::Signed,
        normalise_twice: true,
        ..DetectorOptions::new(Size::D[0])
    }
}

fn expected(part: &str) -> Expected {
    Expected::new("efficientdet", part)
}

#[test]
fn losses_of_classes_and_boxes() {
    let options = options();
    let each = options.anchors.count();
    let mut b = Builder::training(Ranks::default());
    let mut inputs = Vec::new();
    let mut feed = |name: &str, seed: u32, width: usize, scale: f64| -> Vec<Value> {
        let level = |level: usize| {
            let [rows, columns] = config::grid(options.canvas, level);
            let (name, shape) = (format!("{name}.{level}"), [BATCH, rows, columns, each * width]);
            inputs.push((name.clone(), drawn(seed + level as u32, shape.iter().product(), scale)));
            b.feed(&name, DType::F32, shape).expect("a new name")
        };
        (0..LEVELS).map(level).collect()
    };
    let outputs = Outputs { classes: feed("logits", 60, CLASSES, 4.0), boxes: feed("deltas", 70, 4, 0.5) };
    let objects = Objects::feed(&mut b, BATCH, options.max_objects).expect("new names");
    let positives = Matched::new(&mut b, &objects, &options).expect("legal").positives;
    let [class_loss, box_loss] = losses(&mut b, &outputs, &objects, &LossOptions::default(), &options).expect("legal");
    let results_of = [
        ("positives", positives),
        ("class_loss", class_loss),
        ("box_loss", box_loss),
        ("class_gradients", joined_gradients(&mut b, class_loss, &outputs.classes)),
        ("box_gradients", joined_gradients(&mut b, box_loss, &outputs.boxes)),
    ];
    let zeros = [0.0; 4];
    let boxes: [&[f64]; 9] = [
        &[10.0, 6.0, 41.0, 39.5],
        &[70.0, 20.0, 201.0, 100.0],
        &[16.5, 79.5, 56.5, 89.5],
        &zeros,
        &zeros,
        &zeros,
        // Both want one reference box, which has their sides: those coordinates count nowhere.
        &[21.0, 5.0, 53.0, 37.0],
        &[21.0, 5.0, 53.0, 37.0],
        &zeros,
    ];
    let mut inputs = borrowed(&inputs);
    inputs.extend([
        ("boxes", boxes.concat()),
        ("classes", vec![0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0]),
        ("count", vec![3.0, 0.0, 2.0]),
    ]);
    let expected = expected("det_losses");
    let anchors: Vec<f64> = options.anchors.on(options.canvas).boxes().flatten().collect();
    expected.assert_close("anchors", &anchors, 1e-9);
    for results in results(b, &results_of, &inputs) {
        results.assert_equal(&["positives"], &expected);
        results.assert_close(&["class_loss", "box_loss", "class_gradients"], &expected);
        results.assert_close_without_zeros("box_gradients", &expected);
    }
}

/// A weight of either node is negative.
#[test]
fn nodes_with_signed_weights() {
    let options = DetectorOptions { width: 4, ..options() };
    let mut b = Builder::training(Ranks::default());
    let shapes = [(0, [8, 12]), (1, [4, 6]), (1, [4, 6]), (2, [2, 3])];
    let (mut maps, mut inputs) = (Vec::new(), Vec::new());
    for (number, (level, [rows, columns])) in shapes.into_iter().enumerate() {
        let name = format!("map.{number}");
        maps.push((level, b.feed(&name, DType::F32, [2, rows, columns, 4]).expect("a new name")));
        inputs.push((name, drawn(80 + number as u32, 2 * rows * columns * 4, 1.0)));
    }
    let mut node = |name: &'static str, edges: &[usize]| {
        (name, b.scope(name, |b| pyramid::combine(b, &maps, 1, edges, &options)).expect("legal"))
    };
    let outputs = [node("down", &[1, 2, 0]), node("up", &[1, 3])];
    let mut inputs = borrowed(&inputs);
    inputs.extend([("down.edge_weights", vec![0.75, -0.5, 1.25]), ("up.edge_weights", vec![-0.25, 1.5])]);
    for results in results(b, &outputs, &inputs) {
        results.assert_close(&["down", "up"], &expected("fused"));
    }
}

#[test]
fn pixels_are_normalised_twice() {
    let mut b = Builder::new(Mode::Infer);
    let images = b.feed("images", DType::U8, [2, 6, 8, 3]).expect("a new name");
    let sizes = b.feed("sizes", DType::F32, [2, 2]).expect("a new name");
    let scale = &options().scale;
    let once = normalise_on_canvas(&mut b.graph, images, scale, sizes).expect("legal");
    let twice = normalise_again(&mut b.graph, once, scale).expect("legal");
    let inputs = [("images", drawn_bytes(90, 2 * 6 * 8 * 3)), ("sizes", vec![6.0, 8.0, 4.0, 5.0])];
    for results in results(b, &[("pixels", twice)], &inputs) {
        results.assert_close(&["pixels"], &expected("normalised"));
    }
}
