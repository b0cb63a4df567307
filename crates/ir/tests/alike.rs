//! Fusions that may run as one come one behind the other, and their memory is kept apart.

use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::passes::alike::{Form, Runs, is_scalar};
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::passes::{CompileOptions, compile, run_passes};
use bessemer_ir::plan::{Location, LoweredKernel, Plan, Refusal, Target};
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, NodeId, Op, Role, TensorType, Value};
use std::sync::Arc;

/// A target without kernels, on which fusions alike run together.
struct Together;

impl Together {
    const RULES: Rules = Rules { sums_of_whole_tensors: true, alike_regions_together: true, ..Rules::DEFAULT };
}

impl Target for Together {
    fn name(&self) -> &str {
        "together"
    }

    fn rules(&self) -> &Rules {
        &Self::RULES
    }

    fn lower(&self, _: &Graph, _: NodeId, _: &Invariant) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        Ok(None)
    }
}

/// Sums for the norm of a gradient come behind all of its products, and numbers behind these, where fusions alike run together.
#[test]
fn sums_for_a_norm_wait_for_each_other() {
    let mut g = Graph::new();
    let mut x = g.input("x", Role::Feed, TensorType::f32([4, 4])).unwrap();
    let mut total = g.constant(DType::F32, [], 0.0).unwrap();
    let mut grads = Vec::new();
    for name in ["a", "b", "c"] {
        let weight = g.input(name, Role::Parameter, TensorType::f32([4, 4])).unwrap();
        x = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, weight]).unwrap();
        let squares = g.square(x).unwrap();
        let sum = g.sum(squares, &[0, 1]).unwrap();
        total = g.add(total, sum).unwrap();
        grads.push((weight, x));
    }
    let norm = g.unary(UnaryKind::Sqrt, total).unwrap();
    g.output("norm", norm);
    for (weight, grad) in grads {
        let change = g.mul(grad, norm).unwrap();
        let new = g.sub(weight, change).unwrap();
        g.update(weight, new).unwrap();
    }
    let ordered = run_passes(&g, &Together::RULES, &CompileOptions::default(), None).unwrap();
    let kind = |id: NodeId| match &ordered.node(id).op {
        Op::Matmul(_) => Some("product"),
        Op::Fusion(fusion) if fusion.rows * fusion.cols == 1 => Some("number"),
        Op::Fusion(fusion) if fusion.cols == 1 => Some("sum"),
        Op::Fusion(_) => Some("update"),
        _ => None,
    };
    let kinds: Vec<&str> = ordered.ids().filter_map(kind).collect();
    let [product, sum, update] = ["product", "sum", "update"].map(|kind| [kind; 3]);
    assert_eq!(kinds, [&product[..], &sum, &["number"], &update].concat());
}

/// Bytes of the arena in which values lie.
fn bytes(plan: &Plan, values: &[Value]) -> Vec<std::ops::Range<usize>> {
    let arena = |&value: &Value| match plan.location(value) {
        Location::Arena(offset) => Some(offset..offset + plan.graph.ty(value).bytes()),
        Location::State(_) => None,
    };
    values.iter().filter_map(arena).collect()
}

/// Gradients that are rounded while they are added, and numbers of which some are read by other numbers alone: no fusion writes what
/// another one reads that may run beside it, and each number is there behind the last one of its run.
#[test]
fn what_may_run_at_one_time_is_kept_apart() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([8, 8])).unwrap();
    let rate = g.input("rate", Role::Feed, TensorType::f32([])).unwrap();
    let mut total = g.constant(DType::F32, [], 0.0).unwrap();
    let mut grads = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let weight = g.input(name, Role::Parameter, TensorType::f32([8, 8])).unwrap();
        let product = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, weight]).unwrap();
        let scaled = g.mul(product, rate).unwrap();
        let rounded = g.cast(scaled, DType::F16).unwrap();
        let grad = g.cast(rounded, DType::F32).unwrap();
        let squares = g.square(grad).unwrap();
        let sum = g.sum(squares, &[0, 1]).unwrap();
        total = g.add(total, sum).unwrap();
        grads.push((weight, grad));
    }
    let power = g.unary(UnaryKind::Exp, total).unwrap();
    let first = g.add_scalar(power, 1.0).unwrap();
    let second = g.mul(first, power).unwrap();
    let third = g.unary(UnaryKind::Log, second).unwrap();
    for ((weight, grad), factor) in grads.into_iter().zip([first, second, third, third]) {
        let change = g.mul(grad, factor).unwrap();
        let new = g.sub(weight, change).unwrap();
        g.update(weight, new).unwrap();
    }
    let plan = compile(&g, &Together, &CompileOptions::default()).unwrap();
    let runs = Runs::of(&plan.graph, &plan.invariant);
    let outputs = |node: NodeId| {
        let outputs = 0..plan.graph.node(node).outputs.len() as u32;
        bytes(&plan, &outputs.map(|output| Value { node, output }).collect::<Vec<_>>())
    };
    let (mut sums, mut numbers) = (0, 0);
    for a in plan.calls.iter().map(|call| call.node) {
        let others = plan.calls.iter().map(|call| call.node).filter(|&b| b != a && runs.are_of_one(a, b));
        for b in others {
            let mut touched = outputs(b);
            if is_scalar(&plan.graph, a) {
                numbers += 1;
            } else {
                sums += usize::from(Form::of(&plan.graph, a).unwrap().adds());
                touched.extend(bytes(&plan, &plan.graph.node(b).inputs.clone()));
            }
            let meets = |own: &std::ops::Range<usize>| touched.iter().any(|t| own.start < t.end && t.start < own.end);
            assert!(!outputs(a).iter().any(meets), "{} beside {}", plan.graph.node(a).op, plan.graph.node(b).op);
        }
    }
    assert!((sums, numbers) == (4 * 3, 4 * 3), "{sums} and {numbers} pairs");
}
