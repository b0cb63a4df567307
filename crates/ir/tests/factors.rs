//! Matrix products that are added to sums take the factors of both from memory.

use bessemer_ir::ops::fusion::Fusion;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::passes::{CompileOptions, factors, run_passes};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, Role, TensorType};

/// Products that are added to sums of their own by the same numbers share what gives these; a sum that is not kept may hold anything.
#[test]
fn products_are_added_to_sums_by_numbers_in_memory() {
    let mut g = Graph::new();
    let is_first = g.input("is_first", Role::Feed, TensorType::new(DType::Bool, [])).unwrap();
    let scale = g.input("scale", Role::Feed, TensorType::f32([])).unwrap();
    let x = g.input("x", Role::Feed, TensorType::f32([4, 3])).unwrap();
    for (name, columns) in [("a", 5), ("b", 2)] {
        let y = g.input(&format!("{name}.y"), Role::Feed, TensorType::f32([4, columns])).unwrap();
        let sum = g.input(&format!("{name}.sum"), Role::State, TensorType::f32([3, columns])).unwrap();
        let product = g.push1(Matmul { trans_a: true, trans_b: false }, &[x, y]).unwrap();
        let zero = g.constant_like(product, 0.0).unwrap();
        let before = g.select(is_first, zero, sum).unwrap();
        let part = g.mul(product, scale).unwrap();
        let part = g.mul_scalar(part, 0.75).unwrap();
        let next = g.add(before, part).unwrap();
        g.update_each_micro_batch(sum, next).unwrap();
        g.output(name, next);
    }
    let compiled = |rules: &Rules| run_passes(&g, rules, &CompileOptions::default(), None).unwrap();
    let count = |graph: &Graph, is: fn(&Fusion) -> bool| {
        graph.ids().filter_map(|id| graph.node(id).op.as_fusion()).filter(|fusion| is(fusion)).count()
    };
    let (plain, rewritten) =
        (compiled(&Rules::DEFAULT), compiled(&Rules { factors_of_products: true, ..Rules::DEFAULT }));
    let is_sum = |fusion: &Fusion| fusion.program == factors::PROGRAM;
    let gives_numbers = |fusion: &Fusion| fusion.producer.is_none() && fusion.outputs.len() == 2;
    assert_eq!([count(&plain, is_sum), count(&plain, gives_numbers)], [0, 0]);
    assert_eq!([count(&rewritten, is_sum), count(&rewritten, gives_numbers)], [2, 1]);
    let results = |graph: &Graph| {
        let mut run = Interpreter::new(graph);
        let numbers = |count: u32, first: f64| (0..count).map(|i| f64::from(i) - first).collect::<Vec<_>>();
        for (name, values) in [("x", numbers(12, 3.5)), ("a.y", numbers(20, 7.0)), ("b.y", numbers(8, 2.0))] {
            run.set(name, &values);
        }
        run.set("scale", &[1.25]);
        for (name, count) in [("a.sum", 15), ("b.sum", 6)] {
            run.set(name, &vec![f64::NAN; count]);
        }
        let mut steps = Vec::new();
        for is_first in [1.0, 0.0, 0.0, 1.0] {
            run.set("is_first", &[is_first]);
            run.run();
            steps.push(["a", "b"].map(|name| run.output(name).data.clone()).concat());
        }
        steps
    };
    let (expected, found) = (results(&g), results(&rewritten));
    assert!(
        expected.iter().flatten().zip(found.iter().flatten()).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + a.abs()))
    );
    assert!(expected[1] != expected[0] && expected[3] == expected[0] && expected[0].iter().all(|x| x.is_finite()));
}
