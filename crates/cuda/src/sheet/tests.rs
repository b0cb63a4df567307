use super::*;
use crate::CudaTarget;
use crate::exec::{PRODUCT_WORKSPACE, RESERVED};
use bessemer_ir::ops::Op;
use bessemer_ir::ops::collective::{AllReduce, Wire};
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::reduce::MeanVar;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::Plan;
use bessemer_ir::{DType, Graph, Role, TensorType};

/// One product of `[m, k]` and `[k, n]`, doubled.
fn plan(dtype: DType, tf32: bool) -> Plan {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::new(dtype, [512, 256])).unwrap();
    let w = g.input("w", Role::Feed, TensorType::new(dtype, [256, 1024])).unwrap();
    let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
    let y = g.add(y, y).unwrap();
    g.output("y", y);
    compile(&g, &CudaTarget, &CompileOptions { tf32, ..CompileOptions::default() }).unwrap()
}

/// A sheet whose families reach all of their limits, but for products and fusions by elements.
fn sheet() -> Sheet {
    let mut text = include_str!("a100.toml").to_owned();
    let mut efficiency = String::new();
    for family in Family::ALL {
        let (arithmetic, memory) = match family {
            Family::Products => (0.75, 0.5),
            Family::Pointwise => (1.0, 0.8),
            _ => (1.0, 1.0),
        };
        efficiency += &format!("[efficiency.{}]\n", family.key());
        if family.has_products() {
            efficiency += &format!("arithmetic = {{ value = {arithmetic}, origin = \"measured\" }}\n");
        }
        efficiency += &format!("memory = {{ value = {memory}, origin = \"estimate\" }}\n");
    }
    text.replace_range(text.find("[efficiency").unwrap().., &efficiency);
    text = text.replace("launch_us = { value = 3.6", "launch_us = { value = 0.8");
    Sheet { name: "a".to_owned(), of: parse(&text).unwrap(), text }
}

#[test]
fn a_launch_takes_the_longer_of_its_two_limits() {
    let sheet = sheet();
    let (flops, product_bytes) = (2 * 512 * 256 * 1024, 4 * (512 * 256 + 256 * 1024 + 512 * 1024));
    let prediction = sheet.predict(&plan(DType::F32, false), 3, true);
    assert_eq!(prediction.families.len(), 2, "{prediction:?}");
    let family =
        |prediction: &Prediction, name: &str| prediction.families.iter().find(|(known, _)| *known == name).unwrap().1;
    let products = family(&prediction, "matrix products");
    assert_eq!((products.launches, products.flops, products.bytes), (1, flops, product_bytes));
    let seconds = flops as f64 / 19.5e12 / 0.75 + 0.8e-6;
    assert!((products.seconds - seconds).abs() < 1e-12, "{} {seconds}", products.seconds);
    let fusions = family(&prediction, "fusions by elements");
    assert_eq!((fusions.launches, fusions.flops, fusions.bytes), (1, 0, 2 * 4 * 512 * 1024));
    let seconds = 2.0 * 4.0 * 512.0 * 1024.0 / 2.039e12 / 0.8 + 0.8e-6;
    assert!((fusions.seconds - seconds).abs() < 1e-12, "{} {seconds}", fusions.seconds);
    assert!((prediction.all.seconds - products.seconds - fusions.seconds).abs() < 1e-12);
    let bounds = [products.bound, fusions.bound, prediction.all.bound];
    assert_eq!(bounds, [Bound::Arithmetic, Bound::Memory, Bound::Arithmetic]);
    let half = sheet.predict(&plan(DType::Bf16, false), 1, true);
    let of_half = family(&half, "matrix products");
    let seconds = (product_bytes / 2 + 2 * 512 * 1024) as f64 / 2.039e12 / 0.5 + 0.8e-6;
    assert_eq!(of_half.bound, Bound::Memory);
    assert!((of_half.seconds - seconds).abs() < 1e-12, "{} {seconds}", of_half.seconds);
    let batches = 3 * 4 * (512 * 256 + 256 * 1024);
    let scratch = [batches, batches / 2].map(|batches| PRODUCT_WORKSPACE + batches);
    assert_eq!([prediction.scratch_bytes, half.scratch_bytes], scratch);
    let tf32 = family(&sheet.predict(&plan(DType::F32, true), 1, true), "matrix products").seconds;
    let seconds = (flops as f64 / 156e12 / 0.75).max(product_bytes as f64 / 2.039e12 / 0.5) + 0.8e-6;
    assert!((tf32 - seconds).abs() < 1e-12, "{tf32} {seconds}");
    assert_eq!((prediction.plain.len(), &prediction.fused[..]), (1, &[][..]));
    assert_eq!(prediction.plain[0].reason, "product to memory, then its fusion: cuBLASLt has no such function");
}

/// A product of weights that are not trained runs once, and a sum over ranks has a message.
#[test]
fn memory_of_what_runs_once_and_of_messages_is_counted() {
    let scratch = |of_once: bool, ranks: usize| {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::f32([700])).unwrap();
        let mut y = g.mul_scalar(x, 3.0).unwrap();
        if of_once {
            let u = g.input("u", Role::Parameter, TensorType::f32([7, 100])).unwrap();
            let v = g.input("v", Role::Parameter, TensorType::f32([100, 100])).unwrap();
            let fixed = g.push1(Matmul { trans_a: false, trans_b: false }, &[u, v]).unwrap();
            let fixed = g.reshape(fixed, [700]).unwrap();
            y = g.add(y, fixed).unwrap();
        }
        if ranks > 1 {
            y = g.push1(AllReduce { ranks, wire: Wire::F32 }, &[y]).unwrap();
        }
        g.output("y", y);
        let plan = compile(&g, &CudaTarget, &CompileOptions::default()).unwrap();
        assert_eq!(plan.once_calls.is_empty(), !of_once);
        scratch_bytes(&plan)
    };
    let aligned = (700 * 4usize).next_multiple_of(256);
    let batches = 3 * aligned;
    assert_eq!([scratch(false, 1), scratch(true, 1)], [batches, batches + PRODUCT_WORKSPACE]);
    assert_eq!(scratch(false, 2), batches + aligned);
}

/// A bias that is added in the product's pass: of 16 bits it is rounded before.
#[test]
fn products_with_biases_are_one_launch() {
    for (dtype, launches) in [(DType::F32, 1), (DType::Bf16, 2)] {
        let mut g = Graph::new();
        let mut feed =
            |name: &str, dtype, shape: [usize; 2]| g.input(name, Role::Feed, TensorType::new(dtype, shape)).unwrap();
        let (x, w, bias) =
            (feed("x", dtype, [512, 256]), feed("w", dtype, [256, 64]), feed("bias", DType::F32, [1, 64]));
        let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
        let y = g.add(y, bias).unwrap();
        let y = g.cast(y, dtype).unwrap();
        g.output("y", y);
        let plan = compile(&g, &CudaTarget, &CompileOptions::default()).unwrap();
        let prediction = Sheet::usual().predict(&plan, 1, true);
        assert_eq!(prediction.fused, [FusedProducts { what: "bias", nodes: 1 }]);
        assert_eq!((prediction.all.launches, &prediction.plain[..]), (launches, &[][..]), "{dtype}");
        let prediction = Sheet::usual().predict(&plan, 1, false);
        assert_eq!((prediction.all.launches, &prediction.fused[..]), (2, &[][..]), "{dtype}");
        assert_eq!(prediction.plain[0].reason, "product to memory, then its fusion: --no-epilogues");
    }
}

/// A convolution of 16 bits with moments of its result, or with a bias.
fn convolution(dtype: DType, moments: bool) -> Prediction {
    let mut g = Graph::new();
    let x = g.input("x", Role::Feed, TensorType::new(dtype, [8, 28, 28, 64])).unwrap();
    let w = g.input("w", Role::Feed, TensorType::new(dtype, [3, 3, 64, 32])).unwrap();
    let y = g.push1(Conv2d::new([1, 1], [[1, 1], [1, 1]]), &[x, w]).unwrap();
    if moments {
        let y = g.cast(y, dtype).unwrap();
        g.output("y", y);
        let wide = g.cast(y, DType::F32).unwrap();
        let moments = g.push(Op::from(MeanVar { axes: vec![0, 1, 2] }), &[wide]).unwrap();
        g.output("mean", moments[0]);
        g.output("variance", moments[1]);
    } else {
        let bias = g.input("bias", Role::Feed, TensorType::f32([32])).unwrap();
        let y = g.add(y, bias).unwrap();
        let y = g.cast(y, dtype).unwrap();
        g.output("y", y);
    }
    let plan = compile(&g, &CudaTarget, &CompileOptions::default()).unwrap();
    Sheet::usual().predict(&plan, 1, true)
}

/// Statistics that are known to have an engine move no more than the convolution, its sums, and what is made of them. What may be
/// fused is predicted in its plain form, and listed.
#[test]
fn what_convolutions_do_in_their_pass_is_predicted_where_an_engine_is_known() {
    let (x, w, y) = (8 * 28 * 28 * 64 * 2, 3 * 3 * 64 * 32 * 2, 8 * 28 * 28 * 32 * 2);
    let bytes = |prediction: &Prediction, name: &str| -> u64 {
        let own = prediction.families.iter().filter(|(known, _)| known.starts_with(name));
        own.map(|(_, family)| family.bytes).sum()
    };
    let fused = convolution(DType::F16, true);
    assert_eq!(fused.fused, [FusedProducts { what: "statistics", nodes: 1 }]);
    assert_eq!(bytes(&fused, "convolutions with more"), x + w + y + 2 * 32 * 4);
    assert_eq!(bytes(&fused, "fusions"), 4 * 32 * 4);
    assert!(fused.plain.is_empty(), "{:?}", fused.plain);
    for (dtype, moments, what) in
        [(DType::Bf16, true, "statistics"), (DType::F16, false, "shift"), (DType::F32, false, "")]
    {
        let plain = convolution(dtype, moments);
        assert_eq!((&plain.fused[..], plain.plain.len()), (&[][..], 1), "{dtype}");
        assert!(bytes(&plain, "fusions") > y, "{dtype}");
        let reason = match dtype {
            DType::F32 => "with convolutions cuDNN fuses in 16 bits here".to_owned(),
            _ => format!("{what}, if cuDNN compiles an engine that is measured to be faster"),
        };
        assert_eq!(plain.plain[0].reason, format!("product to memory, then its fusion: {reason}"));
    }
}

/// Of a sheet that is built in, with something replaced.
fn problem(from: &str, to: &str) -> String {
    let text = BUILT_IN[0].1;
    assert!(text.contains(from), "{from}");
    parse(&text.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn what_is_wrong_with_a_sheet_is_named() {
    let no_products = "[efficiency.copies]\narithmetic = { value = 0.5, origin = \"measured\" }";
    let problems = [
        (
            "fp32_tflops",
            "fp32_flops",
            "line 9: unknown field `fp32_flops`, expected one of `fp32_tflops`, `tf32_tflops`",
        ),
        ("launch_us =", "# launch_us =", "line 8: missing field `launch_us`"),
        ("value = 67.0", "value = \"fast\"", "line 9: invalid type: string \"fast\", expected f64"),
        ("value = 67.0", "value = -67.0", "`limits.fp32_tflops` must be above 0"),
        ("value = 67.0", "value = inf", "`limits.fp32_tflops` must be above 0"),
        ("value = 3.6,", "value = nan,", "`limits.launch_us` must be at least 0"),
        ("value = 1.5", "value = 141.0", "`limits.reserved_gbytes` must be less than memory_gbytes"),
        ("value = 0.65", "value = 65", "`efficiency.products.arithmetic` must be above 0 and at most 1"),
        (
            "\"data_sheet\"",
            "\"hearsay\"",
            "unknown variant `hearsay`, expected one of `data_sheet`, `measured`, `estimate`",
        ),
        ("efficiency.copies", "efficiency.moves", "unknown variant `moves`, expected one of `products`"),
        ("[efficiency.copies]\nmemory", "# ", "`efficiency.copies` is missing"),
        (
            "[efficiency.products]\narithmetic",
            "[efficiency.products]\n# ",
            "`efficiency.products.arithmetic` is missing",
        ),
        ("[efficiency.copies]", no_products, "`efficiency.copies.arithmetic`: it has no products"),
        ("product = ", "product ", "line 5: "),
    ];
    for (from, to, expected) in problems {
        let problem = problem(from, to);
        assert!(problem.contains(expected) && !problem.contains('\n'), "{from} to {to}: {problem}");
    }
    let unknown = Sheet::find("b200").unwrap_err().to_string();
    assert_eq!(unknown, "b200: neither a file nor a sheet that is built in; there are h200, h100, a100");
}

#[test]
fn a_sheet_of_all_families_is_built_in_by_name() {
    assert_eq!(Sheet::usual().name, "h200");
    for name in Sheet::names() {
        let sheet = Sheet::find(name).unwrap();
        assert!(sheet.product().starts_with("NVIDIA ") && sheet.of.source.len() > 20, "{name}");
        assert_eq!(sheet.of.limits.reserved_gbytes.value * 1e9, RESERVED as f64, "as errors reserve");
        let is_measured = |share: &&Efficiency| {
            share.arithmetic.into_iter().chain([share.memory]).any(|figure| figure.origin == Origin::Measured)
        };
        // Nothing was measured on others.
        assert_eq!(sheet.of.efficiency.values().any(|share| is_measured(&share)), name == "h200");
    }
}

#[test]
fn sheets_differ() {
    let plan = plan(DType::F32, false);
    let seconds = |name: &str| Sheet::find(name).unwrap().predict(&plan, 1, true).all.seconds;
    let seconds: Vec<f64> = Sheet::names().into_iter().map(seconds).collect();
    assert!(seconds.is_sorted() && seconds[0] < seconds[2], "{seconds:?}");
}
