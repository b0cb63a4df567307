//! Fusions that are launched together, on the mock of a GPU: they compute what each does alone.

use crate::common::mock_or_skip;
use crate::device::{agrees, bytes, f32s, gpu, load, load_fed, open};
use bessemer_cuda::CudaDevice;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::run::Phase;
use bessemer_ir::{Graph, Role, TensorType};

/// Fusions of one program that are launched as one, of parts of a block and of several blocks, against the reference in
/// `f64`.
#[test]
fn a_group_of_fusions_computes_what_each_does() {
    let Some(folder) = mock_or_skip("a_group_of_fusions_computes_what_each_does") else { return };
    let gpu = gpu(folder);
    let mut g = Graph::new();
    let rate = f32s(&mut g, "rate", &[]);
    for shape in [[3, 5], [1, 1030], [70, 33], [128, 64]] {
        let [x, y] = ["x", "y"].map(|name| f32s(&mut g, &format!("{name} of {shape:?}"), &shape));
        let scaled = g.mul(y, rate).unwrap();
        let moved = g.sub(x, scaled).unwrap();
        let squared = g.mul(moved, moved).unwrap();
        g.output(&format!("z of {shape:?}"), squared);
    }
    let kernels = load(&gpu, &g).kernels();
    let grouped = kernels.iter().filter(|kernel| kernel.name.ends_with(", one of 4 in a launch")).count();
    assert_eq!((kernels.len(), grouped), (4, 4), "{kernels:?}");
    agrees(&gpu, &g);
}

/// The bits of all outputs of a graph, whose feeds are normal numbers, in two steps, and the names of its kernels.
fn bits_of(gpu: &CudaDevice, graph: &Graph) -> (Vec<Vec<u32>>, Vec<String>) {
    let mut executor = load_fed(gpu, graph);
    let mut bits = Vec::new();
    for _ in 0..2 {
        executor.run().unwrap();
        let output = |(name, _): &(String, _)| executor.output_f32(name).unwrap().iter().map(|x| x.to_bits()).collect();
        bits.extend(graph.outputs().iter().map(output));
    }
    (bits, executor.kernels().into_iter().map(|kernel| kernel.name).collect())
}

/// Sums of whole tensors, of one form, are added as one: parts of a block, one block, and several. Each has the bits that it has alone.
#[test]
fn a_group_of_sums_adds_as_each_does_alone() {
    let Some(folder) = mock_or_skip("a_group_of_sums_adds_as_each_does_alone") else { return };
    let mut g = Graph::new();
    let rate = f32s(&mut g, "rate", &[]);
    for shape in [&[3, 5][..], &[1030], &[7, 40, 33], &[128, 161]] {
        let x = f32s(&mut g, &format!("x of {shape:?}"), shape);
        let scaled = g.mul(x, rate).unwrap();
        let squares = g.square(scaled).unwrap();
        let total = g.sum(squares, &(0..shape.len()).collect::<Vec<_>>()).unwrap();
        g.output(&format!("scaled of {shape:?}"), scaled);
        g.output(&format!("total of {shape:?}"), total);
    }
    agrees(&gpu(folder), &g);
    let (together, names) = bits_of(&gpu(folder), &g);
    assert_eq!(names, ["region, one of 4 in a launch"; 4]);
    let (alone, names) = bits_of(&open(folder, true).unwrap(), &g);
    assert_eq!(names, ["region"; 4]);
    assert!(together == alone, "sums of a group have other bits than those alone");
}

/// A norm, what follows from it, and state of one element that is read in its old form and in its new one.
fn numbers() -> Graph {
    let mut g = Graph::new();
    let x = f32s(&mut g, "x", &[6]);
    let [n, m] = ["n", "m"].map(|name| g.input(name, Role::State, TensorType::f32([])).unwrap());
    let squares = g.square(x).unwrap();
    let total = g.sum(squares, &[0]).unwrap();
    let norm = g.unary(UnaryKind::Sqrt, total).unwrap();
    let inverse = g.scoped("inverse", |g| g.unary(UnaryKind::Recip, norm)).unwrap();
    let one = g.constant_like(inverse, 1.0).unwrap();
    let factor = g.binary(BinaryKind::Min, inverse, one).unwrap();
    let faster = g.add(factor, n).unwrap();
    let clipped = g.mul(x, faster).unwrap();
    for (name, value) in
        [("norm", norm), ("inverse", inverse), ("factor", factor), ("faster", faster), ("clipped", clipped)]
    {
        g.output(name, value);
    }
    let next = g.add_scalar(n, 0.25).unwrap();
    g.update(n, next).unwrap();
    let kept = g.mul_scalar(m, 0.5).unwrap();
    let moved = g.add(kept, next).unwrap();
    g.update(m, moved).unwrap();
    g.output("moved", moved);
    g
}

/// Fusions of one element, which read what others before them have written, are computed by one thread, those that replace state by
/// another; each has the bits that it has alone.
#[test]
fn a_program_of_scalars_computes_what_each_does() {
    let Some(folder) = mock_or_skip("a_program_of_scalars_computes_what_each_does") else { return };
    let g = numbers();
    agrees(&gpu(folder), &g);
    let (together, names) = bits_of(&gpu(folder), &g);
    let expected = [1, 4, 4, 4, 4, 1, 2, 2].map(|launched| match launched {
        1 => "region".to_owned(),
        _ => format!("region, one of {launched} in a launch"),
    });
    assert_eq!(names, expected);
    let (alone, names) = bits_of(&open(folder, true).unwrap(), &g);
    assert_eq!(names, ["region"; 8]);
    assert!(together == alone, "scalars of a program have other bits than those alone");
    let number = |bits: u32| f32::from_bits(bits);
    let (first, second) = together.split_at(together.len() / 2);
    let [before, after] = [first, second].map(|step| (number(step[3][0]) - number(step[2][0]), number(step[5][0])));
    assert!((before.0, (after.0 - 0.25).abs() < 1e-6) == (0.0, true), "{before:?}, {after:?}");
    assert_eq!((before.1, after.1), (0.25, 0.625));
}

/// Behind a program each of its numbers is there: the first one that is not finite is found, and what it was made of.
#[test]
fn a_scalar_that_is_not_finite_is_found_in_a_program() {
    let Some(folder) = mock_or_skip("a_scalar_that_is_not_finite_is_found_in_a_program") else { return };
    let mut executor = load(&gpu(folder), &numbers());
    executor.feed(&[("x", &bytes(&[2.0; 6]))]).unwrap();
    assert_eq!(executor.find_non_finite(Phase::Update).unwrap(), None);
    executor.feed(&[("x", &bytes(&[0.0; 6]))]).unwrap();
    let found = executor.find_non_finite(Phase::Update).unwrap().unwrap();
    assert_eq!((found.path.as_str(), found.is_input), ("inverse", false));
    assert_eq!(found.input_ranges, [(0.0, 0.0)]);
}
