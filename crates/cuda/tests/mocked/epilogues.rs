//! What is done with matrix products in their pass, on the mock of a GPU.

use crate::common::{Knobs, mock_or_skip};
use crate::device::{f32s, gpu, kernel_that_agrees, options, plan};
use bessemer_cuda::{CudaDevice, CudaOptions};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::{DType, Graph, NodeId, Value};
use bessemer_nn::Activation;
use std::path::Path;

/// What follows a sum of a product and a bias.
type Bend = fn(&mut Graph, Value) -> Value;

/// `bend(x w + bias)` of `rows` rows, with operands and result of type `ty`; with the product itself as a result too where it is `kept`.
fn biased(ty: DType, rows: usize, kept: bool, bend: Bend) -> Graph {
    let mut g = Graph::new();
    let (x, w, bias) = (f32s(&mut g, "x", &[rows, 40]), f32s(&mut g, "w", &[24, 40]), f32s(&mut g, "bias", &[24]));
    let [x, w] = [x, w].map(|v| g.cast(v, ty).unwrap());
    let product = g.push1(Matmul { trans_a: false, trans_b: true }, &[x, w]).unwrap();
    if kept {
        g.output("product", product);
    }
    let sum = g.add(product, bias).unwrap();
    let y = bend(&mut g, sum);
    let y = g.cast(y, ty).unwrap();
    g.output("y", y);
    g
}

/// Runs a graph, and compares its outputs with the reference. The name of what ran the product.
fn product_of(gpu: &CudaDevice, graph: &Graph, allowed: f64) -> String {
    kernel_that_agrees(gpu, graph, allowed, "matmul")
}

/// cuBLASLt adds a bias and takes GELU by tanh in the product's pass, where it has a way; otherwise a kernel does. Either differs from
/// the reference by rounding: 2e-5 of the largest element in `f32`, two roundings in 16 bits.
#[test]
fn biases_and_activations_are_done_in_the_pass_of_a_product() {
    let Some(folder) = mock_or_skip("biases_and_activations_are_done_in_the_pass_of_a_product") else { return };
    let knobs = Knobs::of(folder, "libcublasLt.so.13");
    let gpu = gpu(folder);
    let plain_gpu = CudaDevice::open(&CudaOptions { no_epilogues: true, ..options(folder, false) }).unwrap();
    let bends: [(&str, Bend); 2] =
        [("bias", |_, x| x), ("bias and GELU", |g, x| Activation::GeluTanh.apply(g, x).unwrap())];
    let plain = "matmul by cuBLASLt, then region";
    for (ty, allowed) in [(DType::F32, 2e-5), (DType::F16, 2e-3), (DType::Bf16, 1.5e-2)] {
        for (what, bend) in bends {
            let graph = biased(ty, 6, false, bend);
            assert_eq!(product_of(&gpu, &graph, allowed), format!("matmul by cuBLASLt with {what}"), "{ty}");
            assert_eq!(product_of(&plain_gpu, &graph, allowed), plain, "{what}, {ty}, switched off");
            knobs.set("no_epilogues", 1);
            let without = CudaDevice::open(&options(folder, false)).unwrap();
            assert_eq!(product_of(&without, &graph, allowed), plain, "{what}, {ty}, without a way");
            knobs.set("no_epilogues", 0);
            assert_eq!(product_of(&gpu, &biased(ty, 1, false, bend), allowed), plain, "{what}, {ty}, of one row");
        }
        let erf: Bend = |g, x| Activation::Gelu.apply(g, x).unwrap();
        assert_eq!(product_of(&gpu, &biased(ty, 6, false, erf), allowed), plain, "GELU by erf, {ty}");
        // The library's ReLU may make 0 of NaN.
        let relu: Bend = |g, x| g.relu(x).unwrap();
        assert_eq!(product_of(&gpu, &biased(ty, 6, false, relu), allowed), plain, "ReLU, {ty}");
        assert_eq!(product_of(&gpu, &biased(ty, 6, true, bends[1].1), allowed), plain, "a product that is kept, {ty}");
    }
}

/// `z = x w + bias` and `y = bend(z)`, both rounded to the type of the operands, of so many columns.
fn kept(ty: DType, columns: usize, bend: Bend) -> Graph {
    let mut g = Graph::new();
    let (x, w) = (f32s(&mut g, "x", &[6, 40]), f32s(&mut g, "w", &[columns, 40]));
    let bias = f32s(&mut g, "bias", &[columns]);
    let [x, w] = [x, w].map(|v| g.cast(v, ty).unwrap());
    let product = g.push1(Matmul { trans_a: false, trans_b: true }, &[x, w]).unwrap();
    let sum = g.add(product, bias).unwrap();
    let z = g.cast(sum, ty).unwrap();
    g.output("z", z);
    let wide = g.cast(z, DType::F32).unwrap();
    let y = bend(&mut g, wide);
    let y = g.cast(y, ty).unwrap();
    g.output("y", y);
    g
}

const TYPES_OF_16_BITS: [(DType, f64); 2] = [(DType::F16, 2e-3), (DType::Bf16, 1.5e-2)];

/// What the backward pass reads of GELU is kept by the product; of other functions the product keeps the sum, and a kernel does the rest.
#[test]
fn sums_with_biases_are_kept_beside_what_is_made_of_them() {
    let Some(folder) = mock_or_skip("sums_with_biases_are_kept_beside_what_is_made_of_them") else { return };
    let gpu = gpu(folder);
    let plain_gpu = CudaDevice::open(&CudaOptions { no_epilogues: true, ..options(folder, false) }).unwrap();
    let tanh: Bend = |g, x| Activation::GeluTanh.apply(g, x).unwrap();
    let erf: Bend = |g, x| Activation::Gelu.apply(g, x).unwrap();
    for (ty, allowed) in TYPES_OF_16_BITS {
        for (columns, bend, name) in [
            (24, tanh, "matmul by cuBLASLt with bias and GELU, the sum kept"),
            // Rows of the sum would not be aligned.
            (20, tanh, "matmul by cuBLASLt with bias, then region"),
            (24, erf, "matmul by cuBLASLt with bias, then region"),
        ] {
            let graph = kept(ty, columns, bend);
            assert_eq!(product_of(&gpu, &graph, allowed), name, "{ty}, {columns} columns");
            assert_eq!(product_of(&plain_gpu, &graph, allowed), "matmul by cuBLASLt, then region", "{ty}");
        }
    }
}

/// `y = (x w) gelu'(z)`, and its sums over rows, `z` being in memory that nothing else reads.
fn gelu_gradient(ty: DType) -> Graph {
    let mut g = Graph::new();
    let (x, w, z) = (f32s(&mut g, "x", &[6, 40]), f32s(&mut g, "w", &[40, 24]), f32s(&mut g, "z", &[24, 6]));
    let [x, w, z] = [x, w, z].map(|v| g.cast(v, ty).unwrap());
    let z = g.transpose(z, &[1, 0]).unwrap();
    let product = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
    let rounded = g.cast(product, ty).unwrap();
    let [product, z] = [rounded, z].map(|v| g.cast(v, DType::F32).unwrap());
    let square = g.mul(z, z).unwrap();
    let third = g.mul_scalar(square, 0.044_715).unwrap();
    let inner = g.add_scalar(third, 1.0).unwrap();
    let inner = g.mul(inner, z).unwrap();
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    let inner = g.mul_scalar(inner, factor).unwrap();
    let tanh = g.unary(UnaryKind::Tanh, inner).unwrap();
    let slope = g.mul_scalar(third, 3.0).unwrap();
    let slope = g.add_scalar(slope, 1.0).unwrap();
    let slope = g.mul_scalar(slope, factor).unwrap();
    let squared = g.mul(tanh, tanh).unwrap();
    let rest = g.mul_scalar(squared, -1.0).unwrap();
    let rest = g.add_scalar(rest, 1.0).unwrap();
    let rest = g.mul(rest, slope).unwrap();
    let rest = g.mul(rest, z).unwrap();
    let first = g.add_scalar(tanh, 1.0).unwrap();
    let both = g.add(first, rest).unwrap();
    let both = g.mul_scalar(both, 0.5).unwrap();
    let y = g.mul(product, both).unwrap();
    let y = g.cast(y, ty).unwrap();
    g.output("y", y);
    let wide = g.cast(y, DType::F32).unwrap();
    let sums = g.sum(wide, &[0]).unwrap();
    g.output("sums", sums);
    g
}

/// GELU's gradient is taken in the pass of the product, which reads what was kept until it has written everything: the result lies elsewhere.
/// Sums over rows are those of the rounded result.
#[test]
fn gradients_of_gelu_are_taken_in_the_pass_of_a_product() {
    let Some(folder) = mock_or_skip("gradients_of_gelu_are_taken_in_the_pass_of_a_product") else { return };
    let gpu = gpu(folder);
    let plain_gpu = CudaDevice::open(&CudaOptions { no_epilogues: true, ..options(folder, false) }).unwrap();
    for (ty, allowed) in TYPES_OF_16_BITS {
        let graph = gelu_gradient(ty);
        let name = "matmul by cuBLASLt with gradient of GELU, then region";
        assert_eq!(product_of(&gpu, &graph, 2.0 * allowed), name, "{ty}");
        assert_eq!(product_of(&plain_gpu, &graph, 2.0 * allowed), "matmul by cuBLASLt, then region", "{ty}");
        let plan = plan(&graph);
        let has_product = |id: &NodeId| plan.graph.node(*id).op.as_fusion().is_some_and(|f| f.producer.is_some());
        let node = plan.graph.ids().find(has_product).unwrap();
        let kept = plan.graph.node(node).inputs.iter().find(|&&v| plan.graph.shape(v).dims() == [6, 24]).unwrap();
        let result = Value { node, output: 0 };
        assert_eq!(plan.graph.ty(*kept), plan.graph.ty(result));
        assert_ne!(plan.location(*kept), plan.location(result), "{ty}");
    }
}

/// The gradient of the bias before GELU is taken in the same pass where that was measured to be faster than a kernel of its own: in
/// `bf16`, which has the range of `f32`, rounded to that type.
#[test]
fn gradients_of_biases_are_taken_with_those_of_gelu_where_that_is_faster() {
    let test = "gradients_of_biases_are_taken_with_those_of_gelu_where_that_is_faster";
    let Some(folder) = mock_or_skip(test) else { return };
    let knobs = Knobs::of(folder, "libcublasLt.so.13");
    let scratch = tempfile::tempdir().unwrap();
    let both = "matmul by cuBLASLt with gradients of GELU and bias, then region";
    for (ty, allowed) in TYPES_OF_16_BITS {
        for (slow, is_faster) in [("slow_gelu_gradients", true), ("slow_bias_gradients", false)] {
            knobs.set("slow_plain", 1);
            knobs.set(slow, 1);
            let tuning = Some(scratch.path().join(format!("{ty}-{slow}.json")));
            let tuned = CudaDevice::open(&CudaOptions { tuning, ..options(folder, false) }).unwrap();
            let name = product_of(&tuned, &gelu_gradient(ty), 2.0 * allowed);
            knobs.set(slow, 0);
            knobs.set("slow_plain", 0);
            assert_eq!(name == both, is_faster && ty == DType::Bf16, "{ty}, {slow}: {name}");
        }
    }
}

/// What a kernel reads behind the product does not lie where the product writes the sum.
#[test]
fn sums_are_not_kept_where_something_is_still_read() {
    let Some(folder) = mock_or_skip("sums_are_not_kept_where_something_is_still_read") else { return };
    let gpu = gpu(folder);
    for (ty, allowed) in TYPES_OF_16_BITS {
        let mut g = Graph::new();
        let (x, w, other) =
            (f32s(&mut g, "x", &[6, 40]), f32s(&mut g, "w", &[24, 40]), f32s(&mut g, "other", &[24, 6]));
        let bias = f32s(&mut g, "bias", &[24]);
        let [x, w, other] = [x, w, other].map(|v| g.cast(v, ty).unwrap());
        let other = g.transpose(other, &[1, 0]).unwrap();
        let product = g.push1(Matmul { trans_a: false, trans_b: true }, &[x, w]).unwrap();
        let sum = g.add(product, bias).unwrap();
        let z = g.cast(sum, ty).unwrap();
        g.output("z", z);
        let [z, other] = [z, other].map(|v| g.cast(v, DType::F32).unwrap());
        let y = g.add(z, other).unwrap();
        let y = g.cast(y, ty).unwrap();
        g.output("y", y);
        assert_eq!(product_of(&gpu, &g, allowed), "matmul by cuBLASLt with bias, then region", "{ty}");
    }
}

/// The algorithms in a file of measurements, by product.
fn kept_algorithms(file: &Path) -> Vec<(String, u64)> {
    let all: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let products = all["NVIDIA H200 (mock), driver 13000, cuBLASLt 130100"].as_object().unwrap();
    let kept = |(name, choice): (&String, &serde_json::Value)| {
        assert!(choice["microseconds"].as_f64().unwrap() >= 0.0);
        (name.clone(), choice["algorithm"][0].as_u64().unwrap())
    };
    products.iter().map(kept).collect()
}

/// The mock has two algorithms for each product that add in `f32`, of which the first one can be made slow. A file of measurements decides the
/// same again, unless the library takes an algorithm no more. Biases are added in the pass of the product unless that was measured to be
/// slower.
#[test]
fn the_fastest_algorithm_is_used_and_kept() {
    let Some(folder) = mock_or_skip("the_fastest_algorithm_is_used_and_kept") else { return };
    let knobs = Knobs::of(folder, "libcublasLt.so.13");
    let (graph, scratch) = (biased(DType::F16, 6, false, |_, x| x), tempfile::tempdir().unwrap());
    let file = scratch.path().join("engines.json");
    let (fused, plain) = ("matmul by cuBLASLt with bias", "matmul by cuBLASLt, then region");
    // The name of what ran, and launches by the first algorithm and by the second.
    let run = |setting: &str, file: &Path| {
        ["by_first", "by_second"].iter().for_each(|counter| knobs.set(counter, 0));
        knobs.set(setting, 1);
        let tuned = CudaDevice::open(&CudaOptions { tuning: Some(file.to_owned()), ..options(folder, false) }).unwrap();
        let name = product_of(&tuned, &graph, 2e-3);
        knobs.set(setting, 0);
        assert_eq!(tuned.memory(), []);
        (name, knobs.get("by_first"), knobs.get("by_second"))
    };
    knobs.set("slow_plain", 1);
    let (name, first, second) = run("slow_first", &file);
    assert!(name == fused && first > 1 && second > 1, "{name}, {first} and {second} launches");
    let product = |what: &str, algorithm| (format!("[6, 40] [40, 24] transposed, f16 to f16, {what}"), algorithm);
    let of_plain = ("[6, 40] [40, 24] transposed, f16 to f32, alone".to_owned(), 2);
    assert_eq!(kept_algorithms(&file), [product("bias", 2), of_plain]);
    assert_eq!(run("nothing", &file), (fused.to_owned(), 0, 1), "what was kept is not measured again");
    // A third one rounds parts of sums: measurements of it, which earlier versions of the program made, are not taken up.
    let by_second = "\"algorithm\": [\n        2,";
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches(by_second).count(), 2, "{text}");
    std::fs::write(&file, text.replace(by_second, &by_second.replace('2', "3"))).unwrap();
    let (name, first, second) = run("slow_first", &file);
    assert!(name == fused && first > 1 && second > 1, "{name}, {first} and {second} launches");
    assert_eq!(kept_algorithms(&file)[0], product("bias", 2));
    let (name, first, second) = run("no_second", &file);
    assert!(name == fused && first > 1 && second == 0, "{name}, {first} and {second} launches");
    assert_eq!(kept_algorithms(&file)[0], product("bias", 1));
    assert_eq!(run("nothing", &scratch.path().join("another.json")).0, fused);
    knobs.set("slow_plain", 0);
    let other = scratch.path().join("other.json");
    assert_eq!(run("slow_fusions", &other).0, plain);
    assert_eq!(run("nothing", &other).0, plain, "as it was measured");
}
