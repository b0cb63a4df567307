//! Steps run by the reference interpreter and on the CPU.

use bessemer_cpu::{CpuOptions, Executor, Isa};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Graph};

/// What runs a step.
pub(crate) trait Run {
    fn set(&mut self, name: &str, data: &[f64]);
    /// A micro-batch that is not the last of its step.
    fn accumulate(&mut self);
    fn step(&mut self);
    fn output(&self, name: &str) -> f64;
    fn state(&self, name: &str) -> Vec<f64>;
}

impl Run for Interpreter<'_> {
    fn set(&mut self, name: &str, data: &[f64]) {
        Interpreter::set(self, name, data);
    }

    fn accumulate(&mut self) {
        Interpreter::accumulate(self);
    }

    fn step(&mut self) {
        self.run();
    }

    fn output(&self, name: &str) -> f64 {
        Interpreter::output(self, name).data[0]
    }

    fn state(&self, name: &str) -> Vec<f64> {
        self.input(name).data.clone()
    }
}

impl Run for Executor {
    fn set(&mut self, name: &str, data: &[f64]) {
        if self.input_type(name).expect("an input").dtype == DType::I32 {
            let data: Vec<i32> = data.iter().map(|&x| x as i32).collect();
            return self.write(name, bytemuck::cast_slice(&data)).expect("an input");
        }
        let data: Vec<f32> = data.iter().map(|&x| x as f32).collect();
        self.write_f32(name, &data).expect("an input");
    }

    fn accumulate(&mut self) {
        Executor::accumulate(self).expect("it runs");
    }

    fn step(&mut self) {
        self.run().expect("it runs");
    }

    fn output(&self, name: &str) -> f64 {
        self.scalar(name).expect("an output").into()
    }

    fn state(&self, name: &str) -> Vec<f64> {
        if self.input_type(name).expect("a state").dtype == DType::I32 {
            let content = self.input(name).expect("a state");
            return content.chunks_exact(4).map(|four| bytemuck::pod_read_unaligned::<i32>(four).into()).collect();
        }
        self.input_f32(name).expect("a state").iter().map(|&x| x.into()).collect()
    }
}

pub(crate) fn executor(graph: &Graph, options: &CompileOptions, threads: usize) -> impl Run + use<> {
    compiled(graph, options, threads)
}

pub(crate) fn compiled(graph: &Graph, options: &CompileOptions, threads: usize) -> Executor {
    let cpu = CpuOptions { isa: Isa::detect(), threads };
    let plan = compile(graph, &cpu, options).expect("it compiles");
    Executor::new(plan, cpu).expect("every operation has a kernel")
}

/// Asserts that no element is off by more than `tolerance` times the largest one.
pub(crate) fn assert_close(what: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (a, e) in actual.iter().zip(expected) {
        assert!((a - e).abs() <= tolerance * largest, "{what}: {a}, not {e} (largest {largest})");
    }
}
