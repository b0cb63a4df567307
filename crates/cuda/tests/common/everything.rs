//! A step that uses every library and every kind of launch.

use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::index::Gather;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::run::{Executor, HALT, RunError, Ticket};
use bessemer_ir::{DType, Graph, Op, Role, TensorType, philox};

/// A step of two micro-batches with a bit of everything: a convolution, a product with softmax, one with a bias, rows chosen by index, state that
/// is replaced after each micro-batch and once a step, by fusions and by copies.
pub(crate) fn everything() -> Graph {
    let mut g = Graph::new();
    let feed = |g: &mut Graph, name: &str, shape: &[usize]| g.input(name, Role::Feed, TensorType::f32(shape)).unwrap();
    let (x, w, halt) = (feed(&mut g, "x", &[2, 6, 6, 4]), feed(&mut g, "w", &[3, 3, 4, 8]), feed(&mut g, HALT, &[]));
    let y = g.push1(Op::from(Conv2d::new([1, 1], [[1, 1], [1, 1]])), &[x, w]).unwrap();
    let rows = g.reshape(y, [72, 8]).unwrap();
    let v = g.input("v", Role::Parameter, TensorType::f32([8, 40])).unwrap();
    let scores = g.push1(Op::from(Matmul { trans_a: false, trans_b: false }), &[rows, v]).unwrap();
    let p = g.softmax(scores).unwrap();
    let (u, bias) = (feed(&mut g, "u", &[8, 6]), feed(&mut g, "bias", &[6]));
    let biased = g.push1(Op::from(Matmul { trans_a: false, trans_b: false }), &[rows, u]).unwrap();
    let biased = g.add(biased, bias).unwrap();
    let indices = g.input("indices", Role::Feed, TensorType::new(DType::I32, [5])).unwrap();
    let chosen = g.push1(Gather::ROWS, &[p, indices]).unwrap();
    let loss = g.sum(chosen, &[0, 1]).unwrap();
    let total = g.input("total", Role::State, TensorType::f32([])).unwrap();
    let next_total = g.add(total, loss).unwrap();
    g.update_each_micro_batch(total, next_total).unwrap();
    let kept = g.input("kept", Role::State, TensorType::f32([5, 40])).unwrap();
    g.update(kept, chosen).unwrap();
    let shrunk = g.mul_scalar(v, 0.5).unwrap();
    g.update(v, shrunk).unwrap();
    let halt = g.mul_scalar(halt, 2.0).unwrap();
    let results = [("loss", loss), ("chosen", chosen), ("biased", biased), ("total", next_total), (HALT, halt)];
    for (name, value) in results {
        g.output(name, value);
    }
    g
}

/// Content of `n` elements of `f32`.
pub(crate) fn normal(n: usize, stream: u32) -> Vec<u8> {
    (0..n).flat_map(|i| philox::normal(3, 0, stream, i as u64).to_ne_bytes()).collect()
}

/// Submits a step of both micro-batches.
///
/// # Errors
/// Those of the executor.
pub(crate) fn submit(executor: &mut dyn Executor) -> Result<Ticket, RunError> {
    let indices = [7i32, 0, 7, 71, 30].map(i32::to_ne_bytes).concat();
    executor.feed(&[("x", &normal(288, 1)), ("w", &normal(288, 2)), ("indices", &indices)])?;
    executor.accumulate()?;
    executor.feed(&[("x", &normal(288, 3))])?;
    executor.submit()
}
