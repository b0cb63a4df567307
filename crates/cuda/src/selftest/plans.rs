//! Whole plans by the executor: a step of something like each family of models, launched and replayed, against the reference.

use super::{Failure, Figure};
use crate::exec::CudaDevice;
use crate::lower::CudaTarget;
use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::index::OneHot;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::pool::{AvgPool2d, MaxPool2d};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::run::Device;
use bessemer_ir::{DType, Graph, GraphError, Op, Role, TensorType, Value, philox};

/// A graph whose outputs are a loss and its gradients.
pub(super) struct PlanCase {
    pub name: &'static str,
    graph: Graph,
}

/// Adds inputs and notes those of which gradients are wanted.
#[derive(Default)]
struct Writer {
    graph: Graph,
    trained: Vec<Value>,
}

type Result<T> = std::result::Result<T, GraphError>;

impl Writer {
    fn input(&mut self, shape: &[usize]) -> Result<Value> {
        let name = format!("x{}", self.trained.len());
        let value = self.graph.input(&name, Role::Feed, TensorType::f32(shape))?;
        self.trained.push(value);
        Ok(value)
    }

    fn indices(&mut self, name: &str, shape: &[usize]) -> Result<Value> {
        self.graph.input(name, Role::Feed, TensorType::new(DType::I32, shape))
    }

    /// `(x - mean) / deviation * scale + shift` over `axes`.
    fn norm(&mut self, x: Value, axes: &[usize]) -> Result<Value> {
        let shape = self.graph.shape(x).clone();
        let cols = shape.cols();
        let (scale, shift) = (self.input(&[cols])?, self.input(&[cols])?);
        let g = &mut self.graph;
        let (mean, variance) = g.moments(x, axes)?;
        let kept: Vec<usize> =
            (0..shape.rank()).map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] }).collect();
        let (mean, variance) = (g.reshape(mean, kept.clone())?, g.reshape(variance, kept)?);
        let stable = g.add_scalar(variance, 1e-3)?;
        let inverse = g.rsqrt(stable)?;
        let centred = g.sub(x, mean)?;
        let normed = g.mul(centred, inverse)?;
        let scaled = g.mul(normed, scale)?;
        g.add(scaled, shift)
    }

    fn finish(mut self, name: &'static str, loss: Value) -> Result<PlanCase> {
        self.graph.output("loss", loss);
        for (index, gradient) in gradients(&mut self.graph, loss, &self.trained)?.into_iter().enumerate() {
            self.graph.output(&format!("gradient of x{index}"), gradient);
        }
        Ok(PlanCase { name, graph: self.graph })
    }
}

/// Convolutions, plain, uneven and depthwise, batch norm, pooling.
fn of_images() -> Result<PlanCase> {
    let mut writer = Writer::default();
    let (x, w) = (writer.input(&[4, 13, 11, 8])?, writer.input(&[3, 3, 8, 16])?);
    let conv = Conv2d::new([2, 1], [[0, 1], [1, 1]]);
    let y = writer.graph.push1(Op::from(conv), &[x, w])?;
    let y = writer.norm(y, &[0, 1, 2])?;
    let y = writer.graph.relu(y)?;
    let pool = MaxPool2d { window: [3, 3], stride: [2, 2], pad: [[1, 1], [1, 1]] };
    let y = writer.graph.push1(Op::from(pool), &[y])?;
    let depthwise = Conv2d { groups: 16, ..Conv2d::new([1, 1], [[1, 1], [1, 1]]) };
    let w = writer.input(&[3, 3, 1, 16])?;
    let y = writer.graph.push1(Op::from(depthwise), &[y, w])?;
    let pool = AvgPool2d { window: [2, 2], stride: [1, 1], pad: [[0, 0], [0, 0]], count_include_pad: false };
    let g = &mut writer.graph;
    let y = g.push1(Op::from(pool), &[y])?;
    let y = g.square(y)?;
    let loss = g.mean(y, &[0, 1, 2, 3])?;
    writer.finish("images", loss)
}

/// Embedding, attention with dropout, layer norm, GELU, cross entropy.
fn of_text() -> Result<PlanCase> {
    const WIDTH: usize = 48;
    let mut writer = Writer::default();
    let ids = writer.indices("ids", &[3, 20])?;
    let table = writer.input(&[8, WIDTH])?;
    let x = writer.graph.gather(table, ids, 0, 0)?;
    let bias = writer.graph.input("bias", Role::Feed, TensorType::f32([3, 20]))?;
    let counter = writer.indices("counter", &[])?;
    let dropout = Some(AttentionDropout { rate: Scalar(0.1), seed: 11, stream: 2, keeps_mask: false });
    let attention = Attention { heads: 3, scale: Scalar(0.25), dropout, output: DType::F32 };
    let y = writer.graph.push(attention, &[x, x, x, bias, counter])?[0];
    let y = writer.graph.add(x, y)?;
    let y = writer.norm(y, &[2])?;
    let w = writer.input(&[100, WIDTH])?;
    let g = &mut writer.graph;
    let y = g.push1(Matmul { trans_a: false, trans_b: true }, &[y, w])?;
    let scaled = g.mul_scalar(y, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = g.unary(UnaryKind::Erf, scaled)?;
    let above = g.add_scalar(erf, 1.0)?;
    let y = g.mul(y, above)?;
    let log = g.log_softmax(y)?;
    let truth = g.push1(OneHot { depth: 100 }, &[ids])?;
    let kept = g.mul(log, truth)?;
    let sum = g.sum(kept, &[0, 1, 2])?;
    let loss = g.mul_scalar(sum, -1.0 / 60.0)?;
    writer.finish("text", loss)
}

/// All cases.
pub(super) fn cases() -> Result<Vec<PlanCase>> {
    Ok(vec![of_images()?, of_text()?])
}

/// Share of the Euclidean norm of all outputs by which they may differ from the reference. Numbers of 16 bits on the other side
/// of zero, or of a window's maximum, change a gradient wholly.
fn allowed(precision: DType) -> f64 {
    match precision {
        DType::Bf16 => 0.15,
        DType::F16 => 0.05,
        _ => 2e-5,
    }
}

impl PlanCase {
    /// Runs three steps, the first one launched, the others replayed, and compares.
    pub(super) fn run(
        &self,
        device: &CudaDevice,
        precision: DType,
        figures: &mut Vec<Figure>,
    ) -> std::result::Result<(), Failure> {
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let device: &dyn Device = device;
        let mut executor = device.load_alone(compile(&self.graph, &CudaTarget, &options)?)?;
        let mut reference = Interpreter::new(&self.graph);
        for (stream, (_, input)) in self.graph.inputs().enumerate() {
            let draw = |i: usize| match input.ty.dtype {
                DType::I32 => (philox::uniform(5, 0, stream as u32, i as u64) * 8.0).floor(),
                _ => philox::normal(5, 0, stream as u32, i as u64),
            };
            let numbers: Vec<f64> = (0..input.ty.shape.elements()).map(|i| draw(i).into()).collect();
            reference.set(&input.name, &numbers);
            executor.feed(&[(&input.name, &super::case::encode(input.ty.dtype, &numbers))])?;
        }
        reference.run();
        let mut first: Option<Vec<Vec<u8>>> = None;
        for step in 0..3 {
            executor.run()?;
            let outputs = self.graph.outputs().iter().map(|(name, _)| Ok(executor.output(name)?.to_vec()));
            let outputs = outputs.collect::<std::result::Result<Vec<_>, Failure>>()?;
            match &first {
                None => first = Some(outputs),
                Some(first) if *first != outputs => return Err(Failure(format!("step {step} has other bits"))),
                Some(_) => (),
            }
        }
        let (mut norm, mut distance) = (0.0, 0.0);
        for ((name, value), bytes) in self.graph.outputs().iter().zip(first.unwrap_or_default()) {
            let got = super::case::decode(self.graph.dtype(*value), &bytes);
            for (x, y) in reference.output(name).data.iter().zip(&got) {
                norm += x * x;
                distance += (x - y) * (x - y);
            }
        }
        let error = (distance / norm).sqrt();
        figures.push(Figure::new("distance", error, "of the norm"));
        // A distance that is NaN fails.
        if error <= allowed(precision) {
            Ok(())
        } else {
            Err(Failure(format!("{error:.1e} of the norm from the reference")))
        }
    }
}
