use super::*;
use crate::machine::{Limits, Machine};
use crate::workload::{Mode, workload};
use bessemer_ir::ops::reduce::{Reduce, ReduceKind};
use bessemer_train::DeviceOptions;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

const LIMITS: Limits =
    Limits { fp32_gflops: 1e6, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 1e6 };

fn all() -> Vec<Problem> {
    problems().expect("the models can be built")
}

fn chosen(pattern: &str) -> Vec<Problem> {
    let pattern: Pattern = pattern.parse().expect("a pattern");
    all().into_iter().filter(|problem| pattern.matches(&problem.full_name())).collect()
}

fn results(problems: &[Problem]) -> Vec<KernelResult> {
    let device = DeviceOptions::default();
    let options = Options { device: device.clone(), time: Duration::from_millis(2), seed: 1 };
    let machine = Machine::look(&*device.open().unwrap());
    problems.iter().map(|problem| result(problem, &measure(problem, &options), &machine, &LIMITS, &device)).collect()
}

/// FLOPs of the products of a model in one step, the calls of each problem counted, by direction.
fn flops(problems: &[Problem], model: &str) -> BTreeMap<String, u64> {
    let mut flops = BTreeMap::new();
    let own = |problem: &&Problem| problem.model == model && problem.dtype == DType::F32;
    for problem in problems.iter().filter(own) {
        let is_product = ["convolution", "matmul"].iter().any(|kind| problem.family.contains(kind));
        if is_product {
            let direction = problem.family.rsplit("convolution ").next().unwrap_or_default();
            let direction = direction.rsplit("matmul ").next().unwrap_or_default();
            *flops.entry(direction.to_string()).or_insert(0) += problem.cost().flops * problem.calls as u64;
        }
    }
    flops
}

#[test]
fn names_are_unique() {
    let problems = all();
    let mut names = HashSet::new();
    for problem in &problems {
        assert!(names.insert(problem.full_name()), "{} is there twice", problem.full_name());
    }
    for name in [
        "resnet50/conv1 7x7/2 [16,224,224,3]->64 weight gradient fp32",
        "resnet50/layer2.0.conv2 3x3/2 [16,56,56,128]->128 forward bf16",
        "resnet50/layer1.0.conv2 3x3 [1,56,56,64]->64 data gradient fp32",
        "resnet50/normalise+residual+relu [16,56,56,256] fp32",
        "resnet50/sgd-momentum [25557032] in 161 tensors fp32",
        "efficientnet-b0/block2.depthwise 3x3 [4,56,56,144]->144 forward fp32",
        "bert-base/attention [16,128] 12 heads of 64 forward fp32",
        "bert-base/attention [2,512] 12 heads of 64 gradient fp32",
        "bert-base/attention [16,128] 12 heads of 64 dropout 0.1 gradient bf16",
        "electra-base/attention [1,384] 12 heads of 64 forward bf16",
        "bert-base/encoder.0.scores 192 [128,64]x[64,128] left gradient fp32",
        "bert-base/predictions.vocabulary [320,768]x[768,30522] weight gradient bf16",
        "goal/square [2048,2048]x[2048,2048] forward bf16",
    ] {
        assert!(names.contains(name), "{name} is missing");
    }
}

#[test]
fn the_products_of_a_step_are_all_there() {
    let batches =
        [16, 1].map(|batch| workload("resnet50", Mode::Train, batch, DType::F32).expect("a model of the zoo"));
    let expected: u64 = batches.iter().map(|work| bessemer_models::flops(&work.graph)).sum();
    assert_eq!(flops(&all(), "resnet50").values().sum::<u64>(), expected);
}

#[test]
fn the_tables_have_the_arithmetic_that_is_published() {
    let problems = all();
    // 0.39 G multiply-adds a picture (Tan, Le, table 2), four pictures.
    let efficientnet = flops(&problems, "efficientnet-b0");
    let macs = efficientnet["forward"] as f64 / 8.0;
    assert!((0.38e9..0.40e9).contains(&macs), "{macs}");
    assert_eq!(efficientnet["weight gradient"], efficientnet["forward"]);
    // The picture itself needs no gradient.
    let stem = chosen("efficientnet-b0/stem*forward fp32")[0].cost().flops;
    assert_eq!(efficientnet["data gradient"] + stem, efficientnet["forward"]);
    // A layer multiplies each token with 12 hidden^2 weights and has two products of [length, hidden] operands.
    let layers = |sequences: u64, length: u64| 12 * 2 * sequences * length * (12 * 768 * 768 + 2 * length * 768);
    let heads = |sequences: u64| 2 * sequences * (768 * 768 + 20 * (768 * 768 + 768 * 30522));
    let bert = flops(&problems, "bert-base");
    assert_eq!(bert["forward"], layers(16, 128) + layers(4, 384) + heads(16) + heads(4));
    assert_eq!(bert["data gradient"] + bert["left gradient"], bert["forward"]);
}

#[test]
fn two_kernels_are_measured() {
    let problems = chosen("efficientnet-b0/block0.squeeze*forward");
    let results = results(&problems);
    assert_eq!(results.len(), 2, "{problems:?}");
    let [fp32, bf16] = &results[..] else { unreachable!() };
    let ms = fp32.ms.expect("there is a kernel");
    assert!(fp32.runs >= 3 && ms.min > 0.0 && ms.p50 >= ms.min, "{fp32:?}");
    assert_eq!((fp32.flops, fp32.bytes, fp32.calls), (2 * 4 * 32 * 8, 4 * (4 * 32 + 8 * 32 + 4 * 8), 1));
    assert_eq!(fp32.kernel.as_deref(), Some("packed matmul"));
    let gflops = fp32.gflops.expect("it was measured");
    assert!((gflops - fp32.flops as f64 / ms.min / 1e6).abs() < 1e-9 * gflops);
    assert_eq!(fp32.fraction_of_peak, Some(gflops / 1e6));
    assert_eq!((fp32.limit, fp32.emulated, bf16.limit, bf16.emulated), ("fp32", false, "fp32", true));
    assert!(bf16.ms.is_some() != bf16.error.is_some(), "measured or refused: {bf16:?}");
}

#[test]
fn bf16_is_held_against_its_own_peak_where_there_is_one() {
    let limits = Limits { bf16_gflops: Some(5.0), ..LIMITS };
    let problems = chosen("goal/square");
    let device = DeviceOptions::default();
    let row = |problem| {
        result(problem, &Err("not tried".to_string()), &Machine::look(&*device.open().unwrap()), &limits, &device)
    };
    let [fp32, bf16] = [row(&problems[0]), row(&problems[1])];
    assert_eq!((fp32.limit, fp32.limit_rate, fp32.emulated), ("fp32", 1e6, false));
    assert_eq!((bf16.limit, bf16.limit_rate, bf16.emulated), ("bf16", 5.0, false));
    assert_eq!((bf16.error.as_deref(), bf16.fraction_of_peak), (Some("not tried"), None));
}

#[test]
fn every_kind_of_chain_runs_or_says_why_not() {
    for pattern in ["moments*[16,7,7,512]", "normalise*[16,7,7,", "add+relu*[16,7,7,", "resnet50/log-softmax"] {
        let results = results(&chosen(pattern));
        assert!(!results.is_empty(), "{pattern}");
        for row in results {
            assert!(row.precision == "bf16" || row.error.is_none(), "{row:?}");
            assert!(!row.is_product() && row.limit == "memory" && !row.emulated);
            assert_eq!(row.rate(), row.gbytes);
        }
    }
}

#[test]
fn what_has_no_kernel_is_a_row_with_the_reason() {
    let identity = Identity {
        model: "test",
        layer: "sum",
        shapes: "",
        direction: "forward",
        family: "reduction",
        bound: Bound::Memory,
    };
    let op = Reduce { kind: ReduceKind::Sum, axes: vec![0, 2], keep_dims: false }.into();
    let inputs = [TensorType::f32([2, 3, 4])];
    let problem = Problem::single(identity, &op, &inputs, DType::F16, 1).expect("a legal graph");
    let row = &results(std::slice::from_ref(&problem))[0];
    let reason = row.error.as_deref().expect("reductions have no f16 kernel");
    assert!(reason.contains("no kernel for reduce") && reason.contains("f16") && row.ms.is_none(), "{reason}");
    assert_eq!(summary(std::slice::from_ref(row))[0].refused, 1);
}

#[test]
fn attention_is_measured_in_both_directions() {
    let results = results(&chosen("/attention"));
    let names: Vec<&str> = results.iter().map(|row| row.name.as_str()).collect();
    let both = ["forward", "gradient"];
    let of_bert = ["[16,128] 12 heads of 64", "[16,128] 12 heads of 64 dropout 0.1", "[2,512] 12 heads of 64"]
        .into_iter()
        .flat_map(|shapes| [shapes; 2])
        .flat_map(|shapes| both.map(|direction| format!("bert-base/attention {shapes} {direction}")));
    let of_electra = [(); 2].map(|()| "electra-base/attention [1,384] 12 heads of 64 forward".to_string());
    assert_eq!(names, of_bert.chain(of_electra).collect::<Vec<_>>());
    for row in &results {
        assert!(row.error.is_none() && row.is_product() && row.fraction_of_peak > Some(0.0), "{row:?}");
        let sequences = [("[16,128]", 16, 128), ("[2,512]", 2, 512), ("[1,384]", 1, 384)];
        let &(_, sequences, length) = sequences.iter().find(|(shape, ..)| row.name.contains(shape)).unwrap();
        let products = if row.name.ends_with("gradient") { 5 } else { 2 };
        let ratio = row.flops as f64 / (products * 2 * sequences * length * length * 768_u64) as f64;
        assert!((1.0..1.05).contains(&ratio), "what is not in products counts little: {ratio}");
    }
}

#[test]
fn softmax_is_measured_in_the_one_precision_that_it_has() {
    let problems = chosen("softmax");
    assert!(problems.len() >= 5 && problems.iter().all(|problem| problem.dtype == DType::F32));
}

#[test]
fn floors_find_what_is_slow() {
    let mut results = results(&chosen("efficientnet-b0/block0.*forward fp32"));
    let missed = |floors: &Floors, results: &[KernelResult]| -> Vec<String> {
        floors.missed(results).iter().map(|(result, _)| result.name.clone()).collect()
    };
    // Nobody has a peak of a PFLOP/s.
    let products = results.iter().filter(|row| row.is_product() && row.ms.is_some()).count();
    assert!(products >= 3 && products < results.len(), "depthwise convolutions have no floor");
    assert_eq!(missed(&Floors::all(0.9).unwrap(), &results).len(), products);
    for row in &mut results {
        row.fraction_of_peak = row.fraction_of_peak.map(|_| 0.5);
    }
    assert!(missed(&Floors::all(0.5).unwrap(), &results).is_empty(), "the floor itself is reached");
    let floors = Floors::parse("\"*\" = 0.1\n\"block0*excite\" = 0.6\n\"excite\" = 0.2").unwrap();
    let below = missed(&floors, &results);
    assert!(below.len() == 1 && below[0].contains("block0.excite"), "the longest pattern counts: {below:?}");
}

#[test]
fn floors_are_checked() {
    let error = |text: &str| Floors::parse(text).unwrap_err().to_string();
    assert!(error("forward = ").contains("not TOML"));
    assert!(error("").contains("PATTERN"));
    assert!(error("\" \" = 0.5").contains("must not be empty"));
    assert!(error("forward = 1.5").contains("`forward` is 1.5; a fraction"));
    assert!(error("forward = \"fast\"").contains("`forward` is \"fast\""));
    assert!(error("[resnet50]\nforward = 0.5").contains("`resnet50` is"));
    assert!(Floors::all(0.0).is_err() && Floors::all(f64::NAN).is_err() && Floors::all(1.0).is_ok());
    let problems = all();
    let floors = |text: &str| Floors::parse(text).expect("fractions").check(&problems);
    assert_eq!(floors("resnet50 = 1"), Ok(()));
    assert_eq!(floors("resnet51 = 1"), Err(FloorsError::Nothing("resnet51".to_string())));
    assert_eq!(floors("gelu = 0.5"), Err(FloorsError::Nothing("gelu".to_string())));
}

#[test]
fn summaries_weigh_by_time() {
    let mut results = results(&chosen("efficientnet-b0/block0.*eeze*forward fp32"));
    results.extend(results.clone());
    for (row, (ms, calls, fraction)) in results.iter_mut().zip([(1.0, 3, 0.5), (2.0, 1, 1.0)]) {
        row.calls = calls;
        row.ms.as_mut().expect("measured").min = ms;
        row.fraction_of_peak = Some(fraction);
    }
    let shares = summary(&results);
    let expected = Share {
        family: "matmul forward".to_string(),
        precision: "fp32",
        kernels: 2,
        refused: 0,
        ms: 5.0,
        fraction_of_peak: Some(0.7),
        emulated: false,
    };
    assert_eq!(shares, [expected]);
}
