//! What the generated kernels compute, against references in `f64`: the same text that a GPU would run, on the host.

use crate::common::{Knobs, mock_or_skip};
use bessemer_cuda::cubins::CubinCache;
use bessemer_cuda::kgen::{Kernel, fusion};
use bessemer_cuda::loader::{Libraries, Places};
use bessemer_cuda::selftest::case::Case;
use bessemer_cuda::selftest::cases::small_cases;
use bessemer_cuda::selftest::runner::Runner;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, Op, Shape, TensorType};
use std::path::Path;
use std::sync::OnceLock;

/// All small cases, made once: their references take longer than the kernels.
fn all_cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| small_cases().unwrap())
}

fn case(name: &str) -> Case {
    all_cases().iter().find(|case| case.name == name).unwrap().clone()
}

fn runner(folder: &Path) -> Runner {
    let places = Places { named: vec![folder.to_owned()], ..Places::default() };
    Runner::new(&Libraries::find(places), 0, CubinCache::new(folder.join("cubins"))).unwrap()
}

/// The error with threads in this order, in units of what is allowed.
fn error(runner: &Runner, knobs: &Knobs, case: &Case, reverse: bool) -> (f64, Option<String>) {
    knobs.set("reverse", reverse.into());
    let loaded = runner.load(case).unwrap();
    loaded.launch().unwrap();
    case.error(&loaded.outputs().unwrap())
}

#[test]
fn all_kernels_give_the_numbers_of_their_references() {
    let Some(folder) = mock_or_skip("numbers of kernels") else { return };
    let knobs = Knobs::open(folder);
    {
        let runner = runner(folder);
        for case in all_cases() {
            for reverse in [false, true] {
                let (error, words) = error(&runner, &knobs, case, reverse);
                assert!(error <= 1.0, "{}, reverse {reverse}: {}", case.name, words.unwrap());
            }
        }
    }
    assert_eq!(knobs.get("damaged"), 0, "a kernel wrote outside of its memory");
    assert_eq!(knobs.ledger(), []);
}

/// The order of threads changes no bit.
#[test]
fn sums_are_added_in_a_fixed_order() {
    let Some(folder) = mock_or_skip("order of sums") else { return };
    let knobs = Knobs::open(folder);
    let runner = runner(folder);
    for case in all_cases() {
        let run = |reverse: i64| {
            knobs.set("reverse", reverse);
            let loaded = runner.load(case).unwrap();
            loaded.launch().unwrap();
            loaded.outputs().unwrap()
        };
        assert!(run(0) == run(1), "{}", case.name);
    }
}

#[test]
fn captured_kernels_give_the_same() {
    let Some(folder) = mock_or_skip("captured kernels") else { return };
    let runner = runner(folder);
    for case in all_cases() {
        let loaded = runner.load(case).unwrap();
        let graph = loaded.capture().unwrap();
        assert_eq!(graph.nodes(), case.work.launches.len());
        assert!(case.error(&loaded.outputs().unwrap()).0 > 1.0, "{}: capturing runs nothing", case.name);
        graph.launch(&runner.stream).unwrap();
        let (error, words) = case.error(&loaded.outputs().unwrap());
        assert!(error <= 1.0, "{}: {words:?}", case.name);
    }
}

/// Without any one of its barriers, each kernel is wrong in one order of threads or the other.
#[test]
fn a_missing_barrier_is_found() {
    const BARRIER: &str = "__syncthreads();";
    let Some(folder) = mock_or_skip("missing barriers") else { return };
    let knobs = Knobs::open(folder);
    let runner = runner(folder);
    let mut removed = 0;
    for case in all_cases() {
        // In the function that reductions share, or in the kernel itself.
        let (shared, expected) = match case.name.as_str() {
            "layer_norm" | "layer_norm_gradient" => (true, 2),
            "column_sums" => (false, 3),
            "moments" => (false, 5),
            "column_sums_at_once" => (false, 7),
            "moments_at_once" => (false, 11),
            "whole_sums" => (false, 1),
            "arg_max" | "reduce_columns" => (false, 1),
            _ => continue,
        };
        let text = case.work.launches[0].kernel.text.clone();
        let own = text.find("extern \"C\"").unwrap();
        // A block is counted when all of its threads have written: that matters to blocks beside it, of which the mock runs none.
        let counts = |at: usize| text[at + BARRIER.len()..].trim_start().starts_with("__shared__ u32 arrived;");
        let barriers = text.match_indices(BARRIER).map(|(at, _)| at);
        let barriers: Vec<usize> = barriers.filter(|&at| (at < own) == shared && !counts(at)).collect();
        assert_eq!(barriers.len(), expected, "{}", case.name);
        for at in barriers {
            let mut broken = case.clone();
            broken.work.launches[0].kernel.text.replace_range(at..at + BARRIER.len(), "");
            let found = [false, true].iter().any(|&reverse| error(&runner, &knobs, &broken, reverse).0 > 1.0);
            assert!(found, "{}: nothing is wrong without the barrier at {at}", case.name);
            removed += 1;
        }
    }
    assert_eq!(removed, 33);
}

/// Whether a broken case gives an error or other numbers, in one order of threads or the other. Each opens its own device, which the
/// case may leave in an error.
fn is_wrong(folder: &Path, knobs: &Knobs, case: &Case) -> bool {
    [false, true].into_iter().any(|reverse| {
        let runner = runner(folder);
        knobs.set("reverse", reverse.into());
        let loaded = runner.load(case).unwrap();
        loaded.launch().is_err() || case.error(&loaded.outputs().unwrap()).0 > 1.0
    })
}

/// The same of operations that are written by hand: a kernel of theirs, and the number of its own barriers. What is read too early is poison,
/// which must not become an address: it is cut to what the kernel may find there, and scratch memory has room behind it.
#[test]
fn a_missing_barrier_of_an_operation_is_found() {
    const BARRIER: &str = "__syncthreads();";
    const ROOM: usize = 60_000;
    let Some(folder) = mock_or_skip("missing barriers of operations") else { return };
    let knobs = Knobs::open(folder);
    for (name, kernel, expected) in [
        ("suppression_hard", "suppress", 6),
        ("suppression_soft", "suppress", 3),
        ("top_k", "histogram", 2),
        ("top_k", "narrow", 1),
        ("top_k", "sum_largest", 1),
        ("roi_align_gradient", "list_regions", 1),
    ] {
        let mut case = case(name);
        let is_meant = |name: &str| name.rsplit_once('_').is_some_and(|(own, _)| own == kernel);
        let launch = case.work.launches.iter().position(|launch| is_meant(&launch.kernel.name)).unwrap();
        case.work.scratch.iter_mut().for_each(|words| *words += ROOM);
        let text = &mut case.work.launches[launch].kernel.text;
        for (read, cut) in [
            ("count = new_count;", "count = new_count <= MOST ? new_count : 0u;"),
            ("+= counts[thread];", "+= counts[thread] & 1u;"),
            ("+= sums[2u * thread];", "+= sums[2u * thread] & 8191;"),
            ("+= sums[2u * thread + 1u];", "+= sums[2u * thread + 1u] & 8191;"),
        ] {
            *text = text.replace(read, cut);
        }
        let own = text.find("extern \"C\"").unwrap();
        let barriers: Vec<usize> = text.match_indices(BARRIER).map(|(at, _)| at).filter(|&at| at > own).collect();
        assert_eq!(barriers.len(), expected, "{name}, {kernel}");
        for (number, at) in barriers.into_iter().enumerate() {
            let mut broken = case.clone();
            broken.work.launches[launch].kernel.text.replace_range(at..at + BARRIER.len(), "");
            assert!(is_wrong(folder, &knobs, &broken), "{name}, {kernel}: nothing is wrong without barrier {number}");
        }
        assert!(!is_wrong(folder, &knobs, &case), "{name}, {kernel}: with all barriers");
    }
    knobs.set("reset", 1);
}

/// Kernels on tensor cores keep two tiles or one, by the depth of a head: no barrier can be missed by both.
#[test]
fn a_missing_barrier_of_attention_is_found() {
    const BARRIER: &str = "__syncthreads();";
    let Some(folder) = mock_or_skip("missing barriers of attention") else { return };
    let knobs = Knobs::open(folder);
    let runner = runner(folder);
    for (ending, launch) in [("", 0), ("_gradient", 0), ("_gradient", 1)] {
        let cases = ["attention_long", "attention_deep"].map(|name| case(&format!("{name}{ending}")));
        let own = |text: &str| text.find("extern \"C\"").unwrap();
        let barriers = |case: &Case| -> Vec<usize> {
            let text = &case.work.launches[launch].kernel.text;
            text.match_indices(BARRIER).map(|(at, _)| at).filter(|&at| at > own(text)).collect()
        };
        let places = cases.each_ref().map(barriers);
        assert_eq!(places.each_ref().map(Vec::len), [4, 4], "{ending} {launch}");
        for number in 0..4 {
            let is_found = cases.iter().zip(&places).any(|(case, places)| {
                let mut broken = case.clone();
                let at = places[number];
                broken.work.launches[launch].kernel.text.replace_range(at..at + BARRIER.len(), "");
                [false, true].iter().any(|&reverse| error(&runner, &knobs, &broken, reverse).0 > 1.0)
            });
            assert!(is_found, "{ending} {launch}: nothing is wrong without barrier {number}");
        }
    }
}

/// A copy that is not waited for, keys or values in another order, and numbers of another row are found.
#[test]
fn mistakes_in_attention_are_found() {
    let Some(folder) = mock_or_skip("mistakes in attention") else { return };
    let knobs = Knobs::open(folder);
    let runner = runner(folder);
    for (name, launch, right, wrong) in [
        ("attention_long", 0, "copies_are_done();", ""),
        (
            "attention_long",
            0,
            "BY_FOURS, ALL_KEYS>(tiles + stage * 2 * TILE",
            "IN_ORDER, ALL_KEYS>(tiles + stage * 2 * TILE",
        ),
        ("attention_long", 0, "BY_FOURS, ALL_KEYS>(tiles + (stage", "IN_ORDER, ALL_KEYS>(tiles + (stage"),
        ("attention_long", 0, "query + half * 8) * KEYS", "query + half * 8 + 1) * KEYS"),
        ("attention_long", 0, "(int)(quad % 2 == 0", "(int)(quad % 2 != 0"),
        ("attention_long", 0, "<< quad * 4", "<< quad"),
        ("attention_long_gradient", 0, "KEY_BLOCKS + block]", "KEY_BLOCKS + 0 * block]"),
        ("attention_long_gradient", 1, "BY_PAIRS", "IN_ORDER"),
        ("attention_long_gradient", 1, "warp / 2 * 64", "warp % 2 * 64"),
        ("attention_long_gradient", 1, "first_key / 32 + threadIdx.x / 64", "first_key / 32"),
    ] {
        let mut broken = case(name);
        let text = &mut broken.work.launches[launch].kernel.text;
        let own = text.find("extern \"C\"").unwrap();
        let at = own + text[own..].find(right).unwrap_or_else(|| panic!("{name} has no {right}"));
        text.replace_range(at..at + right.len(), wrong);
        let (worst, _) = error(&runner, &knobs, &broken, false);
        assert!(worst > 1.0, "{name}: {wrong:?} for {right:?} changes nothing");
    }
}

/// More runs of rows than a grid has blocks along its second axis, of which each has a sum, beside those of all rows.
#[test]
fn runs_of_rows_may_be_as_many_as_rows() {
    const RUNS: usize = 65_537;
    let Some(folder) = mock_or_skip("many runs of rows") else { return };
    let runner = runner(folder);
    let sum = |groups: usize| FusionOutput::Sum { reg: 0, groups, shape: Shape::from(vec![groups, 1]) };
    for (name, groups) in [("run_sums", vec![RUNS]), ("run_sums_and_all", vec![RUNS, 1])] {
        let fused = Fusion {
            producer: None,
            rows: 2 * RUNS,
            cols: 1,
            loads: vec![IndexMap::full(2 * RUNS)],
            program: vec![Instr::Load(0)],
            outputs: groups.into_iter().map(sum).collect(),
        };
        let x = Tensor::from_fn(TensorType::f32([2 * RUNS]), |i| (i % 251) as f64);
        let case = Case::fusion(name, &fused, vec![x], true).unwrap();
        let loaded = runner.load(&case).unwrap();
        loaded.launch().unwrap();
        let (error, words) = case.error(&loaded.outputs().unwrap());
        assert!(error <= 1.0, "{name}: {words:?}");
    }
}

/// A step that is to be skipped changes nothing, not even the copy in 16 bits.
#[test]
fn a_skipped_update_changes_nothing() {
    let Some(folder) = mock_or_skip("skipped updates") else { return };
    let runner = runner(folder);
    let mut case = case("adamw");
    case.inputs[3].data = vec![1.0];
    for output in &mut case.outputs {
        output.after.data = output.before.clone().unwrap_or_else(|| vec![f64::NAN; output.after.data.len()]);
        output.tolerance = 0.0;
    }
    let loaded = runner.load(&case).unwrap();
    loaded.launch().unwrap();
    assert_eq!(case.error(&loaded.outputs().unwrap()), (0.0, None));
}

/// A barrier that only some threads reach is an error of the launch, not a hang.
#[test]
fn divergent_barriers_are_found() {
    let Some(folder) = mock_or_skip("divergent barriers") else { return };
    let runner = runner(folder);
    let mut case = case("layer_norm");
    let kernel: &mut Kernel = &mut case.work.launches[0].kernel;
    kernel.text = kernel.text.replacen("    __syncthreads();", "    if (threadIdx.x != 3) __syncthreads();", 1);
    let reported = runner.load(&case).unwrap().launch().unwrap_err().to_string();
    assert!(reported.contains("CUDA_ERROR_LAUNCH_FAILED"), "{reported}");
}

/// A kernel that writes to what is no memory is an error of the launch, as on a GPU: it does not end the process.
#[test]
fn accesses_to_no_memory_are_found() {
    let Some(folder) = mock_or_skip("accesses to no memory") else { return };
    let knobs = Knobs::open(folder);
    for name in ["flat", "layer_norm"] {
        let mut case = case(name);
        let kernel: &mut Kernel = &mut case.work.launches[0].kernel;
        let own = kernel.text.find("extern \"C\"").unwrap();
        let at = own + kernel.text[own..].find("{\n").unwrap() + 2;
        kernel.text.insert_str(at, "*(volatile float*)(8ull + threadIdx.x) = 1.0f;\n    ");
        let reported = runner(folder).load(&case).unwrap().launch().unwrap_err().to_string();
        assert!(reported.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{name}: {reported}");
    }
    knobs.set("reset", 1);
}

/// A kernel that writes one element too many damages what stands behind its memory.
#[test]
fn writes_outside_of_memory_are_found() {
    let Some(folder) = mock_or_skip("writes outside of memory") else { return };
    let knobs = Knobs::open(folder);
    {
        let runner = runner(folder);
        let mut case = case("flat");
        let kernel: &mut Kernel = &mut case.work.launches[0].kernel;
        kernel.text = kernel.text.replace("threadIdx.x < 3)", "threadIdx.x < 40)");
        runner.load(&case).unwrap().launch().unwrap();
    }
    assert_ne!(knobs.get("damaged"), 0);
    knobs.set("reset", 1);
}

#[test]
fn accesses_are_as_wide_as_shapes_allow() {
    for case in all_cases() {
        let text = &case.work.launches[0].kernel.text;
        let vectors = match case.name.as_str() {
            "bias_gelu_residual" | "layer_norm" | "softmax_long" | "column_sums" => "load<bf16, 8>",
            "layer_norm_gradient" => "load<bf16, 4>",
            "softmax" | "flat" => "load<float, 4>",
            "moments" => "load<float, 8>",
            "row_bias" => "load<f16, 1>",
            _ => continue,
        };
        assert!(text.contains(vectors), "{}: {text}", case.name);
    }
}

#[test]
fn fusions_without_a_kernel_are_refused() {
    let plain = Fusion {
        producer: None,
        rows: 4,
        cols: 8,
        loads: vec![IndexMap::full(4)],
        program: vec![Instr::Load(0)],
        outputs: vec![FusionOutput::MeanVar { reg: 0, shape: Shape::from(vec![8]) }],
    };
    let reported = |fusion_: &Fusion| fusion("k", fusion_, &[DType::F32]).unwrap_err().to_string();
    let rows = FusionOutput::Rows { reg: 0, ty: TensorType::f32(vec![4]) };
    let both = Fusion { outputs: [plain.outputs.clone(), vec![rows.clone()]].concat(), ..plain.clone() };
    assert_eq!(reported(&both), "no kernel for this fusion: it has moments over rows and reductions along them");
    let sum = FusionOutput::Sum { reg: 0, groups: 1, shape: Shape::from(vec![8]) };
    let long = Fusion { cols: 20_000, outputs: vec![sum.clone(), rows], ..plain.clone() };
    assert!(reported(&long).contains("rows of 20000 are too long to be summed while they are reduced"));
    let huge =
        Fusion { rows: 1 << 28, loads: vec![IndexMap::full(1 << 28)], outputs: vec![sum.clone()], ..plain.clone() };
    assert!(reported(&huge).contains("too many elements"));
    let producer =
        Some(Box::new(Op::Unary(bessemer_ir::ops::pointwise::Unary(bessemer_ir::ops::pointwise::UnaryKind::Neg))));
    assert!(reported(&Fusion { producer, outputs: vec![sum], ..plain }).contains("a producer"));
}
