//! What other implementations compute: cases from fixtures that are made in `peers/`.

use crate::problem::{Tensors, bytes_of, values_of};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::{AnchorLevel, AnchorPlacement, Anchors};
use bessemer_ir::ops::detection::boxes::{AxisOrder, BoxClip, BoxCode, DecodeBoxes, EncodeBoxes};
use bessemer_ir::ops::detection::matching::{ForcedMatch, MatchBoxes};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::pointwise::UnaryKind;
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
        let dtype = if input["dtype"] == "i32" { DType::I32 } else { DType::F32 };
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
        Some("top_k") => graph.top_k(values[0], case["k"].as_u64().expect("a size") as usize, 2)?,
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
    let max_outputs = case["max_outputs"].as_u64().expect("a size") as usize;
    Suppress {
        groups: BoxGroups::Labels,
        legacy: case["legacy"] == true,
        score_floor: scalar(&case["score_floor"]),
        ..Suppress::new(suppression, max_outputs)
    }
}

/// From logits, codes, reference boxes and sizes of images: boxes, scores, labels, and their number.
fn detections(g: &mut Graph, case: &Json, values: &[Value]) -> Result<Vec<Value>, GraphError> {
    let [logits, codes, reference, sizes] = values[..] else { panic!("four inputs") };
    let points = case["points"].as_u64().expect("a size") as usize;
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
