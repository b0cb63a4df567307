//! Products of the first items of a batch on targets that take whole batches.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::{Conv2d, symmetric};
use bessemer_ir::ops::limited::Limited;
use bessemer_ir::passes::{CompileOptions, run_passes};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, Role, TensorType, philox};

#[test]
fn items_that_are_not_there_are_zeros_in_products_of_whole_batches() {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::f32([4, 3, 3, 2])).unwrap();
    let count = g.input("count", Role::Feed, TensorType::new(DType::I32, [])).unwrap();
    let weights = [("w", [3, 3, 2, 5]), ("v", [1, 1, 5, 1])]
        .map(|(name, dims)| g.input(name, Role::Parameter, TensorType::f32(dims)).unwrap());
    let y = g.push1(Limited::new(Conv2d::new([1, 1], symmetric(1))), &[x, weights[0], count]).unwrap();
    // What is not there holds numbers between the two products.
    let y = g.add_scalar(y, 1.0).unwrap();
    let y = g.relu(y).unwrap();
    let y = g.push1(Limited::new(Conv2d::new([1, 1], symmetric(0))), &[y, weights[1], count]).unwrap();
    g.output("y", y);
    let square = g.square(y).unwrap();
    let loss = g.sum(square, &[0, 1, 2, 3]).unwrap();
    let wanted = [weights[0], weights[1], x];
    for (grad, name) in gradients(&mut g, loss, &wanted).unwrap().into_iter().zip(["dw", "dv", "dx"]) {
        g.output(name, grad);
    }

    let rules = Rules { limited_products: false, ..Rules::DEFAULT };
    let rewritten = run_passes(&g, &rules, &CompileOptions::default(), Some("limits")).unwrap();
    let is = |graph: &Graph, kind: fn(&Op) -> bool| graph.ids().filter(|&id| kind(&graph.node(id).op)).count();
    assert_eq!(is(&g, |op| matches!(op, Op::Limited(_))), 6);
    assert_eq!(is(&rewritten, |op| matches!(op, Op::Limited(_))), 0);
    // Of the input, what lies between, and the two gradients there.
    assert_eq!(is(&rewritten, |op| matches!(op, Op::Select(_))) - is(&g, |op| matches!(op, Op::Select(_))), 4);
    for count in [-1.0, 0.0, 3.0, 4.0, 9.0] {
        let [mut own, mut whole] = [&g, &rewritten].map(Interpreter::new);
        for interpreter in [&mut own, &mut whole] {
            for (number, (_, input)) in (0..).zip(g.inputs()) {
                let numbers = |i| f64::from(philox::normal(3, number, 0, i as u64));
                let content: Vec<f64> = match input.name.as_str() {
                    "count" => vec![count],
                    _ => (0..input.ty.shape.elements()).map(numbers).collect(),
                };
                interpreter.set(&input.name, &content);
            }
            interpreter.run();
        }
        for (name, _) in g.outputs() {
            assert_eq!(own.output(name), whole.output(name), "{name} of {count} items");
        }
    }
}
