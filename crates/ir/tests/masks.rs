//! Masks of attention's dropout that are kept for the gradient.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::{Op, Scalar};
use bessemer_ir::passes::{CompileOptions, run_passes};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::rules::{MaskRules, Rules};
use bessemer_ir::{DType, Graph, Role, TensorType, philox};

const RULES: Rules = Rules { kept_masks: Some(MaskRules { multiple: 4, most: 8 }), ..Rules::DEFAULT };

/// Attention of two heads of so many elements, with its gradients.
fn attention(depth: usize, ty: DType, rate: Option<f64>) -> Graph {
    let mut g = Graph::new();
    let sizes = [("q", 3), ("k", 70), ("v", 70)];
    let qkv = sizes.map(|(name, rows)| g.input(name, Role::Feed, TensorType::f32([2, rows, 2 * depth])).unwrap());
    let bias = g.input("bias", Role::Feed, TensorType::f32([2, 70])).unwrap();
    let mut inputs: Vec<_> = qkv.iter().map(|&x| g.cast(x, ty).unwrap()).chain([bias]).collect();
    let dropout = rate.map(|rate| AttentionDropout { rate: Scalar(rate), seed: 4, stream: 2, keeps_mask: false });
    if dropout.is_some() {
        inputs.push(g.input("counter", Role::Feed, TensorType::new(DType::I32, [])).unwrap());
    }
    let attention = Attention { heads: 2, scale: Scalar(0.5), dropout, output: DType::F32 };
    let y = g.push(attention, &inputs).unwrap()[0];
    g.output("y", y);
    let square = g.square(y).unwrap();
    let loss = g.sum(square, &[0, 1, 2]).unwrap();
    for (grad, name) in gradients(&mut g, loss, &qkv).unwrap().into_iter().zip(["dq", "dk", "dv"]) {
        g.output(name, grad);
    }
    g
}

fn rewritten(graph: &Graph) -> Graph {
    run_passes(graph, &RULES, &CompileOptions::default(), Some("masks")).unwrap()
}

/// Of attention and of its gradient, how many keep the mask.
fn keeping(graph: &Graph) -> [usize; 2] {
    let ops = || graph.ids().map(|id| &graph.node(id).op);
    let forward = ops().filter(|op| matches!(op, Op::Attention(of) if of.keeps_mask())).count();
    let gradient = ops().filter(|op| matches!(op, Op::AttentionGrad(of) if of.attention.keeps_mask())).count();
    [forward, gradient]
}

#[test]
fn masks_are_kept_where_the_rule_says_so() {
    let narrow = attention(8, DType::Bf16, Some(0.25));
    assert_eq!(keeping(&rewritten(&narrow)), [1, 1]);
    let plain = run_passes(&narrow, &Rules::DEFAULT, &CompileOptions::default(), Some("masks")).unwrap();
    assert_eq!(keeping(&plain), [0, 0]);
    for other in [
        attention(8, DType::F32, Some(0.25)),
        attention(6, DType::Bf16, Some(0.25)),
        attention(12, DType::Bf16, Some(0.25)),
        attention(8, DType::Bf16, None),
    ] {
        assert_eq!(keeping(&rewritten(&other)), [0, 0]);
    }
}

#[test]
fn a_kept_mask_changes_no_result() {
    let graph = attention(8, DType::Bf16, Some(0.25));
    let kept = rewritten(&graph);
    let [mut own, mut with_mask] = [&graph, &kept].map(Interpreter::new);
    for interpreter in [&mut own, &mut with_mask] {
        for (number, (_, input)) in (0..).zip(graph.inputs()) {
            let numbers = |i| f64::from(philox::normal(3, number, 0, i as u64));
            let count = input.ty.shape.elements();
            let content = if input.name == "counter" { vec![6.0] } else { (0..count).map(numbers).collect() };
            interpreter.set(&input.name, &content);
        }
        interpreter.run();
    }
    for (name, _) in graph.outputs() {
        assert_eq!(own.output(name), with_mask.output(name), "{name}");
    }
}

/// Bit `k % 32` of word `k / 32` is that of key `k`; rows have whole pairs of words.
#[test]
fn a_mask_has_a_bit_for_each_key() {
    let dropout = AttentionDropout { rate: Scalar(0.25), seed: 4, stream: 2, keeps_mask: true };
    let attention = Attention { heads: 1, scale: Scalar(1.0), dropout: Some(dropout), output: DType::F32 };
    let mut g = Graph::new();
    let inputs = [("q", [1, 2, 1]), ("k", [1, 70, 1]), ("v", [1, 70, 1])];
    let mut inputs = inputs.map(|(name, shape)| g.input(name, Role::Feed, TensorType::f32(shape)).unwrap()).to_vec();
    inputs.push(g.input("bias", Role::Feed, TensorType::f32([1, 70])).unwrap());
    inputs.push(g.input("counter", Role::Feed, TensorType::new(DType::I32, [])).unwrap());
    let mask = g.push(attention, &inputs).unwrap()[2];
    assert_eq!(*g.ty(mask), TensorType::new(DType::I32, [1, 1, 2, 4]));
    g.output("mask", mask);
    let mut interpreter = Interpreter::new(&g);
    for (name, elements) in [("q", 2), ("k", 70), ("v", 70), ("bias", 70)] {
        interpreter.set(name, &vec![0.5; elements]);
    }
    interpreter.set("counter", &[6.0]);
    interpreter.run();
    let words = &interpreter.output("mask").data;
    for (row, words) in words.chunks(4).enumerate() {
        for key in 0..128 {
            let is_kept = key < 70 && philox::uniform(4, 6, 2, (row * 70 + key) as u64) >= 0.25;
            assert_eq!((words[key / 32] as i32 >> (key % 32) & 1) != 0, is_kept, "row {row}, key {key}");
        }
    }
}
