//! Parts of graphs against the fixtures of `peers/tensorflow/make_recipe_fixtures.py`: by the interpreter, in `f64`, and on the CPU, in
//! `f32`.

use bessemer_cpu::{CpuOptions, Executor};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Value};
use bessemer_nn::Builder;
use std::collections::BTreeMap;

/// Of longer results the fixtures have every n-th element, with the least odd n that leaves so many.
const MOST_WRITTEN: usize = 500;
/// Results deviate by this share of their largest element at most. Of the interpreter: EfficientDet's recipe takes the larger of a side
/// and 1e-8 where the graph adds it. Of the CPU: coordinates of boxes are rounded to `f32`.
const TOLERANCES: [f64; 2] = [1e-8, 1e-5];

/// A hash of 32 bits of each of `count` positions, as the script has it.
fn hashed(seed: u32, count: usize) -> impl Iterator<Item = u32> {
    (0..count as u32).map(move |position| {
        let mut h = position.wrapping_add(seed.wrapping_mul(0x9E37_79B9));
        for (shift, factor) in [(16, 0x7FEB_352Du32), (15, 0x846C_A68B)] {
            h = (h ^ (h >> shift)).wrapping_mul(factor);
        }
        h ^ (h >> 16)
    })
}

/// Numbers from `-scale` to `scale`.
pub(crate) fn drawn(seed: u32, count: usize, scale: f64) -> Vec<f64> {
    hashed(seed, count).map(|h| (f64::from(h >> 8) / f64::from(1 << 23) - 1.0) * scale).collect()
}

/// Numbers from 0 to 255.
pub(crate) fn drawn_bytes(seed: u32, count: usize) -> Vec<f64> {
    hashed(seed, count).map(|h| f64::from(h >> 24)).collect()
}

/// What a part of a recipe computes.
pub(crate) struct Expected(serde_json::Value);

impl Expected {
    /// Of a file of the fixtures.
    pub(crate) fn new(file: &str, part: &str) -> Self {
        let path = format!("{}/tests/fixtures/recipes/{file}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("the fixture exists");
        let parts: serde_json::Value = serde_json::from_str(&text).expect("the fixture is JSON");
        Expected(parts[part].clone())
    }

    /// The elements of a result that are written.
    pub(crate) fn numbers(&self, name: &str) -> Vec<f64> {
        let list = self.0[name].as_array().unwrap_or_else(|| panic!("there is no {name}"));
        list.iter().map(|x| x.as_f64().expect("a number")).collect()
    }

    /// Asserts that a tensor agrees within a share of the largest element.
    pub(crate) fn assert_close(&self, name: &str, actual: &[f64], tolerance: f64) {
        let expected = self.numbers(name);
        let actual: Vec<f64> = actual.iter().step_by(actual.len().div_ceil(MOST_WRITTEN) | 1).copied().collect();
        assert_eq!(actual.len(), expected.len(), "size of {name}");
        let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
            assert!((a - e).abs() <= tolerance * largest, "{name}: written element {i} is {a}, not {e}");
        }
    }
}

/// What a graph computes.
pub(crate) struct Results {
    by_name: BTreeMap<String, Vec<f64>>,
    tolerance: f64,
}

impl Results {
    /// A result.
    pub(crate) fn numbers(&self, name: &str) -> &[f64] {
        &self.by_name[name]
    }

    /// Asserts that results are equal, as integers have to be.
    pub(crate) fn assert_equal(&self, names: &[&str], expected: &Expected) {
        for name in names {
            assert_eq!(self.by_name[*name], expected.numbers(name), "{name}");
        }
    }

    /// Asserts that results agree.
    pub(crate) fn assert_close(&self, names: &[&str], expected: &Expected) {
        for name in names {
            expected.assert_close(name, &self.by_name[*name], self.tolerance);
        }
    }

    /// Asserts that the elements of a result which are not 0 agree.
    pub(crate) fn assert_close_without_zeros(&self, name: &str, expected: &Expected) {
        let others: Vec<f64> = self.by_name[name].iter().copied().filter(|&x| x != 0.0).collect();
        expected.assert_close(name, &others, self.tolerance);
    }

    /// Asserts that the first elements of a result agree, and that all others are 0.
    pub(crate) fn assert_close_before(&self, name: &str, count: usize, expected: &Expected) {
        let (first, others) = self.by_name[name].split_at(count);
        expected.assert_close(name, first, self.tolerance);
        assert!(others.iter().all(|&x| x == 0.0), "{name} behind element {count}");
    }
}

/// Makes the values outputs and computes them from the inputs: by the interpreter, and on the CPU.
pub(crate) fn results(mut b: Builder, outputs: &[(&str, Value)], inputs: &[(&str, Vec<f64>)]) -> [Results; 2] {
    for (name, value) in outputs {
        b.graph.output(name, *value);
    }
    let (graph, _) = b.finish();
    let mut interpreter = Interpreter::new(&graph);
    let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
    let plan = compile(&graph, &cpu, &CompileOptions::default()).expect("a legal graph");
    let mut executor = Executor::new(plan, cpu).expect("every operation has a kernel");
    for (name, data) in inputs {
        interpreter.set(name, data);
        let bytes: Vec<u8> = match executor.input_type(name).expect("an input").dtype {
            DType::U8 => data.iter().map(|&x| x as u8).collect(),
            DType::I32 => data.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
            _ => data.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        };
        executor.write(name, &bytes).expect("an input");
    }
    interpreter.run();
    executor.run().expect("legal inputs");
    let computed = |name: &str| {
        let is_int = interpreter.output(name).ty.dtype == DType::I32;
        let number = |four: &[u8]| {
            let four: [u8; 4] = four.try_into().expect("4 bytes");
            if is_int { i32::from_le_bytes(four).into() } else { f64::from(f32::from_le_bytes(four)) }
        };
        executor.output(name).expect("an output").chunks_exact(4).map(number).collect()
    };
    let names = || outputs.iter().map(|(name, _)| name.to_string());
    let of_interpreter = names().map(|name| (name.clone(), interpreter.output(&name).data.clone())).collect();
    let of_cpu = names().map(|name| (name.clone(), computed(&name))).collect();
    let [exact, rounded] = TOLERANCES;
    [Results { by_name: of_interpreter, tolerance: exact }, Results { by_name: of_cpu, tolerance: rounded }]
}

/// The gradient of a loss with respect to all parts, one behind the other, `f32[N]`.
pub(crate) fn joined_gradients(b: &mut Builder, loss: Value, parts: &[Value]) -> Value {
    let g = &mut b.graph;
    let parts = gradients(g, loss, parts).expect("differentiable");
    let flat = parts.into_iter().map(|part| g.reshape(part, [g.shape(part).elements()]).expect("as many"));
    let flat: Vec<Value> = flat.collect();
    g.concat(&flat, 0).expect("one axis")
}

/// Named inputs, as [`results`] takes them.
pub(crate) fn borrowed(inputs: &[(String, Vec<f64>)]) -> Vec<(&str, Vec<f64>)> {
    inputs.iter().map(|(name, data)| (name.as_str(), data.clone())).collect()
}
