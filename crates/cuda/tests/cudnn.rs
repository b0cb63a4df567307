//! cuDNN's backend interface: over a mock, and, where the library is there, over the real one without any GPU.

mod common;

use bessemer_cuda::GpuError;
use bessemer_cuda::cudnn::support::Row;
use bessemer_cuda::cudnn::{BatchNorm, Convolution, Cudnn, DeviceDescription, Fusion, Heuristics, Pass, Support};
use bessemer_cuda::driver::{Block, Context, Driver};
use bessemer_cuda::loader::{Libraries, Places, Wanted};
use bessemer_ir::DType;
use common::{Knobs, mock_folder, mock_or_skip, skip};
use std::path::Path;

const MOCK: &str = "libcudnn.so.9";
const SHAPE: [usize; 4] = [2, 5, 6, 8];

fn libraries(folder: &Path) -> Libraries {
    Libraries::find(Places { named: vec![folder.to_owned()], ..Places::default() })
}

fn context(libraries: &Libraries) -> Result<Context, GpuError> {
    Context::new(&Driver::open(&libraries.require(Wanted::Driver)?.path)?, 0)
}

/// From opening the library to running the graph that has every kind of operation but statistics, and one with those.
fn everything(folder: &Path) -> Result<(), GpuError> {
    let libraries = libraries(folder);
    let context = context(&libraries)?;
    let library = Cudnn::open(&libraries, &context)?;
    assert!(library.device_description()?.json.contains("H200 (mock)"));
    let stream = context.stream()?;
    for fusion in [Fusion::ResidualNormDataGradient, Fusion::Statistics, Fusion::Plain(Pass::WeightGradient)] {
        let graph = Convolution::same(SHAPE, 16, 3, 1).graph(fusion, DType::F16);
        let planner = library.planner(&graph, Heuristics::Best)?;
        let plan = planner.plan(planner.len() - 1)?;
        let arena = context.arena((graph.tensors.len() + 1) * 8192)?;
        let block = |at: usize| arena.block(at * 8192, 8192);
        let blocks: Vec<Block> = (0..graph.tensors.len()).map(block).collect::<Result<_, _>>()?;
        for block in &blocks {
            stream.fill(block, 0)?;
        }
        let tensors: Vec<_> = graph.in_memory().map(|id| (id, &blocks[id.0])).collect();
        plan.bind(&tensors, &block(graph.tensors.len())?)?.launch(&stream)?;
    }
    context.synchronize()
}

#[test]
fn nothing_leaks() {
    let Some(folder) = mock_or_skip("cuDNN's descriptors") else { return };
    let (knobs, driver) = (Knobs::of(folder, MOCK), Knobs::open(folder));
    everything(folder).unwrap();
    assert_eq!((knobs.get("descriptors"), knobs.get("handles")), (0, 0));
    assert_eq!((driver.ledger(), driver.get("damaged")), (vec![], 0));
}

/// Each call of cuDNN in turn returns a code that no one knows.
#[test]
fn every_call_may_fail_and_nothing_leaks() {
    let Some(folder) = mock_or_skip("errors of cuDNN") else { return };
    let knobs = Knobs::of(folder, MOCK);
    knobs.set("reset", 1);
    everything(folder).unwrap();
    let calls = knobs.get("calls");
    assert!(calls > 300, "{calls}");
    for failing in 1..=calls {
        let (call, result) = knobs.failing(failing, 987_654, || everything(folder));
        let is_release = call.contains("Destroy");
        match result {
            Err(error) => {
                let message = error.to_string();
                let wanted = format!("{call} failed with code 987654: a code that cuDNN does not explain");
                assert!(message.starts_with(&wanted) && !message.contains('\n'), "{call}: {message}");
            }
            Ok(()) => assert!(is_release, "{call} (call {failing}) was not noticed"),
        }
        let leaked = knobs.get("descriptors") + knobs.get("handles");
        assert_eq!(leaked, i64::from(is_release), "{call} (call {failing})");
    }
    knobs.set("reset", 1);
}

#[test]
fn memory_that_does_not_fit_never_reaches_cudnn() {
    let Some(folder) = mock_or_skip("memory of convolutions") else { return };
    let libraries = libraries(folder);
    let context = context(&libraries).unwrap();
    let library = Cudnn::open(&libraries, &context).unwrap();
    let graph = Convolution::same(SHAPE, 16, 1, 1).graph(Fusion::Plain(Pass::Forward), DType::Bf16);
    let planner = library.planner(&graph, Heuristics::Best).unwrap();
    let arena = context.arena(16384).unwrap();
    let block = |offset, bytes| arena.block(offset, bytes).unwrap();
    let (large, small, odd) = (block(0, 4096), block(4096, 64), block(4104, 4096));
    let message = |blocks: &[&Block], workspace: &Block| {
        let tensors: Vec<_> = graph.in_memory().zip(blocks.iter().copied()).collect();
        planner.plan(0).unwrap().bind(&tensors, workspace).err().unwrap().to_string()
    };
    assert!(message(&[&large, &large], &large).ends_with("`cudnnBackendExecute`: y has no memory"));
    assert!(message(&[&large, &small, &large], &large).ends_with("w takes 256 bytes, 64 are given"));
    assert!(message(&[&odd, &large, &large], &large).ends_with("x is not aligned to 16 bytes"));
    assert!(message(&[&large, &large, &large], &small).ends_with("the workspace takes 1000 bytes, 64 are given"));
}

#[test]
fn a_graph_keeps_the_memory_of_plans() {
    let Some(folder) = mock_or_skip("graphs keep memory of plans") else { return };
    let libraries = libraries(folder);
    let (knobs, context) = (Knobs::open(folder), context(&libraries).unwrap());
    let library = Cudnn::open(&libraries, &context).unwrap();
    let stream = context.stream().unwrap();
    let graph = Convolution::same(SHAPE, 16, 1, 1).graph(Fusion::Plain(Pass::Forward), DType::F16);
    let planner = library.planner(&graph, Heuristics::Best).unwrap();
    let recorded = {
        let arena = context.arena(16384).unwrap();
        let blocks: Vec<Block> = (0..4).map(|at| arena.block(at * 4096, 4096).unwrap()).collect();
        let tensors: Vec<_> = graph.in_memory().zip(&blocks).collect();
        let bound = planner.plan(0).unwrap().bind(&tensors, &blocks[3]).unwrap();
        stream.capture(|| bound.launch(&stream)).unwrap()
    };
    assert_eq!(knobs.get("memory"), 1);
    drop(recorded);
    assert_eq!(knobs.get("memory"), 0);
}

/// What an engine's notes exclude is never made: some engines compile for a second.
#[test]
fn engines_are_judged_before_they_are_made() {
    let Some(folder) = mock_or_skip("notes of engines") else { return };
    let (libraries, knobs) = (libraries(folder), Knobs::of(folder, MOCK));
    let library = Cudnn::open(&libraries, &context(&libraries).unwrap()).unwrap();
    let of = Convolution::same(SHAPE, 16, 3, 1);
    let [tensor_cores, converts_operands, adds_roughly, not_deterministic] = [1, 2, 3, 5];
    for (note, ty, tf32, engine) in [
        (0, DType::F32, false, 7),
        (tensor_cores, DType::F32, false, 8),
        (tensor_cores, DType::F32, true, 7),
        (converts_operands, DType::F32, true, 8),
        (tensor_cores, DType::F16, false, 7),
        (adds_roughly, DType::F16, false, 8),
        (adds_roughly, DType::Bf16, false, 8),
        (adds_roughly, DType::F32, true, 8),
        (not_deterministic, DType::F16, false, 8),
        (not_deterministic, DType::F32, true, 8),
    ] {
        knobs.set("first_numerics", note);
        knobs.set("plans", 0);
        let plan = library.suitable_plan(&of, Pass::Forward, ty, tf32).unwrap();
        assert_eq!((plan.engine.number, knobs.get("plans")), (engine, 1), "note {note} in {ty}, TF32 {tf32}");
    }
}

/// What is opened for a description makes plans and cannot run them; errors say both.
#[test]
fn a_description_is_no_device() {
    let Some(folder) = mock_or_skip("cuDNN without a device") else { return };
    let knobs = Knobs::of(folder, MOCK);
    {
        let library = Cudnn::without_device(&libraries(folder), &DeviceDescription::h200()).unwrap();
        let of = Convolution::same(SHAPE, 16, 3, 2);
        let row = Row::ask(&library, &of, Fusion::NormStatistics, DType::F16, 1);
        assert_eq!((row.offered, row.tried, row.planned, row.precompiled), (2, 1, 1, 1));
        assert_eq!((row.engine, row.workspace_bytes, row.refusal), (Some(7), Some(1000), None));
        knobs.set("compiles", 1);
        assert_eq!(Row::ask(&library, &of, Fusion::Statistics, DType::F16, 1).precompiled, 0);
        let message = library.device_description().unwrap_err().to_string();
        assert!(message.contains("cuDNN was opened for a device description, not for a device"), "{message}");
        let broken = DeviceDescription { json: "no description".to_owned() };
        let message = Cudnn::without_device(&libraries(folder), &broken).err().unwrap().to_string();
        assert_eq!(
            message,
            "cudnnBackendFinalize failed with code 2000: CUDNN_STATUS_BAD_PARAM, for a device description (json)"
        );
    }
    assert_eq!(knobs.get("descriptors"), 0);
    knobs.set("reset", 1);
}

#[test]
fn a_missing_library_is_reported() {
    let Some(folder) = mock_or_skip("a missing cuDNN") else { return };
    let context = context(&libraries(folder)).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let message = Cudnn::open(&libraries(empty.path()), &context).err().unwrap().to_string();
    assert!(message.starts_with("libcudnn.so (convolutions, attention) was not found; looked in "), "{message}");
    std::fs::write(empty.path().join(MOCK), "broken").unwrap();
    let message = Cudnn::open(&libraries(empty.path()), &context).err().unwrap().to_string();
    assert!(message.contains("libcudnn.so.9 cannot be opened"), "{message}");
}

/// The real library, given descriptions of an H200 and an A100, supports what this program relies on.
#[test]
fn the_real_library_supports_what_is_fused() {
    let mut places = Places::of_process(&[]);
    let Some(found) = places.find(Wanted::Cudnn) else {
        return skip("support of cuDNN", "there is no libcudnn.so; crates/cuda/scripts/fetch_cudnn.sh gets it");
    };
    // Engines that compile take functions of the driver, which the mock has: it alone comes before the real libraries.
    if let Some(folder) = mock_folder() {
        let alone = folder.join("driver");
        std::fs::create_dir_all(&alone).unwrap();
        let linked = std::os::unix::fs::symlink(folder.join("libcuda.so.1"), alone.join("libcuda.so.1"));
        assert!(linked.is_ok() || alone.join("libcuda.so.1").exists());
        places.named.push(alone);
    }
    let libraries = Libraries::find(places);
    for description in [DeviceDescription::h200(), DeviceDescription::a100()] {
        let library = Cudnn::without_device(&libraries, &description).unwrap();
        assert!(library.version() >= 90_800, "{}: too old to be asked without a device", found.path.display());
        let ask = |of: &Convolution, fusion, ty| Row::ask(&library, of, fusion, ty, 1);
        let of = Convolution::same([32, 28, 28, 128], 128, 3, 1);
        for fusion in [
            Fusion::Plain(Pass::Forward),
            Fusion::Plain(Pass::DataGradient),
            Fusion::Plain(Pass::WeightGradient),
            Fusion::Statistics,
            Fusion::NormStatistics,
            Fusion::NormWeightGradient,
            Fusion::NormDataGradient,
        ] {
            let row = ask(&of, fusion, DType::F16);
            assert!(row.planned == 1 && row.precompiled == 1, "{row:?}");
            let plain = matches!(fusion, Fusion::Plain(_));
            assert_eq!(ask(&of, fusion, DType::Bf16).precompiled, usize::from(plain), "{row:?}");
        }
        let one = Convolution::same([32, 28, 28, 512], 128, 1, 1);
        assert_eq!(ask(&one, Fusion::ResidualNormDataGradient, DType::F16).precompiled, 1);
        // ReLU that keeps NaN takes no engine away.
        let shifted = Fusion::ALL.into_iter().filter(|fusion| matches!(fusion, Fusion::Shifted(_)));
        for fusion in shifted.filter(|fusion| fusion.support(&of, DType::F32) == Support::Precompiled) {
            let row = Row::ask(&library, &of, fusion, DType::F32, 8);
            assert!(row.precompiled > 0, "{row:?}");
        }
        // Engines of what else is fused compile.
        let compiled = Fusion::ALL.into_iter().filter(|fusion| fusion.support(&of, DType::F16) == Support::Uncertain);
        for fusion in compiled.filter(|_| mock_folder().is_some()) {
            let row = ask(&of, fusion, DType::F16);
            assert!(row.planned == 1 && row.precompiled == 0, "{row:?}");
        }
        // All engines of norms compile.
        for norm in BatchNorm::ALL.into_iter().filter(|_| mock_folder().is_some()) {
            let graph = norm.graph([32, 28, 28, 128], DType::Bf16);
            let row = Row::ask_graph(&library, &graph, [norm.name(), "", ""], 1);
            assert!(row.planned == 1 && row.precompiled == 0, "{row:?}");
        }
    }
    for description in [DeviceDescription::h200(), DeviceDescription::a100()] {
        let library = Cudnn::without_device(&libraries, &description).unwrap();
        let stem = Convolution { kernel: [7; 2], ..Convolution::same([32, 224, 224, 3], 64, 7, 2) };
        let uneven = Convolution::same([32, 113, 113, 32], 64, 3, 2);
        let one = Convolution::same([32, 28, 28, 512], 128, 1, 1);
        let odd = Convolution::same([4, 16, 16, 3], 16, 3, 1);
        let depthwise = Convolution::depthwise([32, 56, 56, 144], 5, 2);
        let mut refused = Vec::new();
        for of in [stem, uneven, one, odd, depthwise] {
            for pass in [Pass::Forward, Pass::DataGradient, Pass::WeightGradient] {
                for ty in [DType::F32, DType::F16, DType::Bf16] {
                    refused.extend(library.suitable_plan(&of, pass, ty, false).err().map(|error| error.to_string()));
                }
            }
        }
        assert!(refused.is_empty(), "{refused:#?}");
        let half = Convolution::same([32, 28, 28, 128], 128, 3, 1).graph(Fusion::Plain(Pass::Forward), DType::F16);
        let first = library.planner(&half, Heuristics::Best).unwrap().plan(0).unwrap();
        assert!(first.engine.uses_tensor_cores, "an engine of fp16 without tensor cores: {:?}", first.engine);
    }
    let broken = DeviceDescription { json: "{}".to_owned() };
    let message = Cudnn::without_device(&libraries, &broken).err().unwrap().to_string();
    assert!(
        message.starts_with("cudnnBackendFinalize failed with code ") && message.contains("a device description"),
        "{message}"
    );
}
