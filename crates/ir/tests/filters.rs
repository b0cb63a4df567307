//! Weights of convolutions in the order of a target's kernels: steps compute the same, and nothing is transposed that need not be.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::{Conv2d, Filter, symmetric};
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::passes::{CompileOptions, run_passes};
use bessemer_ir::plan::StateTensor;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, Role, TensorType, Value, philox};

const RULES: Rules = Rules { filters: Filter::Ohwi, ..Rules::DEFAULT };

/// SGD with momentum on a convolution, a depthwise one and one of a single channel, whose gradients are clipped by their norm.
fn step() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([2, 6, 5, 3])).unwrap();
    let parameter = |g: &mut Graph, name: &str, dims: [usize; 4]| {
        let w = g.input(name, Role::Parameter, TensorType::f32(dims)).unwrap();
        let momentum = g.input(&format!("momentum.{name}"), Role::State, TensorType::f32(dims)).unwrap();
        [w, momentum]
    };
    let parameters = [
        parameter(&mut g, "dense", [3, 3, 3, 4]),
        parameter(&mut g, "depthwise", [3, 3, 1, 4]),
        parameter(&mut g, "narrow", [1, 1, 4, 1]),
        parameter(&mut g, "wide", [1, 2, 1, 5]),
    ];
    let conv = Conv2d::new([1, 1], symmetric(1));
    let point = Conv2d::new([1, 1], symmetric(0));
    let y = g.push1(conv, &[x, parameters[0][0]]).unwrap();
    let y = g.relu(y).unwrap();
    let y = g.push1(Conv2d { groups: 4, ..conv }, &[y, parameters[1][0]]).unwrap();
    let y = g.push1(point, &[y, parameters[2][0]]).unwrap();
    let y = g.push1(point, &[y, parameters[3][0]]).unwrap();
    let square = g.binary(BinaryKind::Mul, y, y).unwrap();
    let loss = g.mean(square, &[0, 1, 2, 3]).unwrap();
    g.output("loss", loss);
    let weights = parameters.map(|[w, _]| w);
    let grads: Vec<Value> = gradients(&mut g, loss, &weights).unwrap();
    let norms = grads.iter().map(|&grad| {
        let square = g.binary(BinaryKind::Mul, grad, grad).unwrap();
        g.sum(square, &[0, 1, 2, 3]).unwrap()
    });
    let norms: Vec<Value> = norms.collect();
    let norm = norms.into_iter().reduce(|a, b| g.binary(BinaryKind::Add, a, b).unwrap()).unwrap();
    g.output("norm", norm);
    let rate = g.constant(DType::F32, [], 0.1).unwrap();
    for ([w, momentum], grad) in parameters.into_iter().zip(grads) {
        let grad = g.binary(BinaryKind::Div, grad, norm).unwrap();
        let half = g.constant_like(momentum, 0.5).unwrap();
        let kept = g.binary(BinaryKind::Mul, momentum, half).unwrap();
        let sum = g.binary(BinaryKind::Add, kept, grad).unwrap();
        let change = g.binary(BinaryKind::Mul, sum, rate).unwrap();
        let new = g.binary(BinaryKind::Sub, w, change).unwrap();
        g.update(momentum, sum).unwrap();
        g.update(w, new).unwrap();
    }
    g.output("dense", parameters[0][0]);
    g
}

/// The input of a name as it is known outside, from one of a graph whose state lies by the rules.
fn outside(interpreter: &Interpreter<'_>, name: &str, ty: &TensorType) -> Vec<f64> {
    let mut data = interpreter.input(name).data.clone();
    StateTensor::new(name, ty, &RULES).from_memory(bytemuck::cast_slice_mut(&mut data));
    data
}

#[test]
fn a_step_on_weights_in_another_order_computes_the_same() {
    let graph = step();
    let rewritten = run_passes(&graph, &RULES, &CompileOptions::default(), Some("filters")).unwrap();
    let transposed = rewritten.ids().filter(|&id| matches!(rewritten.node(id).op, Op::Transpose(_)));
    // Weights of one channel and their gradient, and the weights that are a result.
    assert_eq!(transposed.count(), 3);
    let [mut plain, mut other] = [&graph, &rewritten].map(Interpreter::new);
    for (number, (_, input)) in (0..).zip(graph.inputs()) {
        let content: Vec<f64> =
            (0..input.ty.shape.elements()).map(|i| f64::from(philox::normal(5, number, 0, i as u64))).collect();
        plain.set(&input.name, &content);
        let there = match input.role {
            Role::Feed => content,
            _ => {
                let state = StateTensor::new(&input.name, &input.ty, &RULES);
                let there = state.to_memory(bytemuck::cast_slice(&content));
                there.chunks_exact(8).map(|bytes| f64::from_ne_bytes(bytes.try_into().unwrap())).collect()
            }
        };
        other.set(&input.name, &there);
    }
    let close = |name: &str, a: &[f64], b: &[f64]| {
        let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(a.len() == b.len() && far < 1e-12, "{name}: {far}");
    };
    for _ in 0..3 {
        plain.run();
        other.run();
        for (name, _) in graph.outputs() {
            close(name, &plain.output(name).data, &other.output(name).data);
        }
        for (_, input) in graph.inputs().filter(|(_, input)| input.role != Role::Feed) {
            close(&input.name, &plain.input(&input.name).data, &outside(&other, &input.name, &input.ty));
        }
    }
}

#[test]
fn state_goes_to_memory_and_back() {
    let ty = TensorType::f32([2, 1, 3, 4]);
    let state = StateTensor::new("w", &ty, &RULES);
    assert_eq!((state.ty.shape.dims(), state.axes), (&[4, 2, 1, 3][..], Some([3, 0, 1, 2])));
    let content: Vec<u8> = (0..24).collect();
    let there = state.to_memory(&content).into_owned();
    // The second output channel of the first row: elements 1, 5 and 9 of those outside.
    assert_eq!(there[6..9], [1, 5, 9]);
    let mut back = there;
    state.from_memory(&mut back);
    assert_eq!(back, content);
    let numbers: Vec<f32> = content.iter().map(|&byte| f32::from(byte)).collect();
    let mut wide = state.to_memory(bytemuck::cast_slice(&numbers)).into_owned();
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&wide)[6..9], [1.0, 5.0, 9.0]);
    state.from_memory(&mut wide);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&wide), numbers);
    for ty in [TensorType::f32([3, 3, 1, 8]), TensorType::f32([4, 4, 4])] {
        assert_eq!(StateTensor::new("w", &ty, &RULES), StateTensor { name: "w".to_owned(), ty, axes: None });
    }
}
