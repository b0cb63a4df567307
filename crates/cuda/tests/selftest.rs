//! The programme for real GPUs, over mocks.

mod common;

use bessemer_cuda::cublaslt::{CublasLt, Epilogue, Operands, Product};
use bessemer_cuda::driver::{Context, Driver};
use bessemer_cuda::loader::{Libraries, Places, Wanted};
use bessemer_cuda::selftest::{Plan, SelfTest, run};
use bessemer_ir::DType;
use common::{Knobs, mock_or_skip};
use std::path::{Path, PathBuf};

fn plan(libraries: &Path, cubins: PathBuf) -> Plan {
    Plan { gpu_libraries: vec![libraries.to_owned()], ordinal: 0, cubins, copy_bytes: 4096, speed: false }
}

/// Names and problems of the steps that failed.
fn failures(test: &SelfTest) -> Vec<(&str, &str)> {
    let failed = test.steps.iter().filter(|step| !step.passed);
    failed.map(|step| (step.name.as_str(), step.problem.as_deref().unwrap_or_default())).collect()
}

#[test]
fn everything_passes_and_is_released() {
    let Some(folder) = mock_or_skip("self-test") else { return };
    let knobs = Knobs::open(folder);
    let mut reported = Vec::new();
    let test = run(&plan(folder, folder.join("cubins")), &mut |test| {
        reported.extend(test.steps.last().map(|step| step.name.clone()))
    });
    assert_eq!(failures(&test), []);
    assert!(reported.iter().eq(test.steps.iter().map(|step| &step.name)), "each step is reported");
    assert!(test.steps.iter().any(|step| step.name == "cuBLASLt: what it computes" && step.figures.len() == 19));
    let figures = |name: &str| &test.steps.iter().find(|step| step.name == name).unwrap().figures;
    // Two for each fusion and norm in each of three types; four for each fusion that is timed.
    assert_eq!(figures("cuDNN: what it computes").len(), 132);
    let mut plans = figures("cuDNN: what it computes").iter().filter(|figure| figure.name.starts_with("plans: "));
    assert!(plans.all(|figure| figure.value > 0.0));
    assert_eq!(figures("cuDNN: speed").len(), 72);
    assert_eq!(test.steps.iter().filter(|step| step.name.starts_with("executor: a step of ")).count(), 6);
    assert_eq!(test.cudnn_description.as_deref(), Some("{\"deviceName\":\"NVIDIA H200 (mock)\",\"deviceVer\":900}"));
    assert_eq!((knobs.ledger(), knobs.get("damaged")), (vec![], 0));
}

#[test]
fn a_part_that_is_broken_stops_no_other() {
    let Some(mocks) = mock_or_skip("self-test with a broken part") else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcudnn.so.9"] {
        std::fs::copy(mocks.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("libcublasLt.so.13"), "broken").unwrap();
    let test = run(&plan(folder.path(), mocks.join("cubins")), &mut |_| ());
    let failed = failures(&test);
    let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
    let of_text = ["f32", "bf16", "f16"].map(|ty| format!("executor: a step of text, {ty}"));
    assert_eq!(names[0], "cuBLASLt: what it computes");
    assert_eq!(names[1..], of_text, "steps of images have no matrix products");
    assert!(failed.iter().all(|(_, problem)| problem.contains("libcublasLt.so.13 cannot be opened")), "{failed:?}");
    assert!(test.steps.len() > 10 && failed.iter().all(|(_, problem)| !problem.contains('\n')));
}

#[test]
fn products_that_do_not_fit_their_memory_are_refused() {
    let Some(folder) = mock_or_skip("products") else { return };
    let libraries = Libraries::find(Places { named: vec![folder.to_owned()], ..Places::default() });
    let driver = Driver::open(&libraries.require(Wanted::Driver).unwrap().path).unwrap();
    let context = Context::new(&driver, 0).unwrap();
    let library = CublasLt::open(&libraries, &context).unwrap();
    let arena = context.arena(8192).unwrap();
    let (large, small) = (arena.block(0, 4096).unwrap(), arena.block(4096, 1000).unwrap());
    let (inputs, output) = (DType::Bf16, DType::Bf16);
    let product = Product {
        batch: 1,
        m: 32,
        n: 32,
        k: 32,
        x_transposed: false,
        w_transposed: false,
        inputs,
        output,
        tf32: false,
    };
    let reported = |product, x, epilogue| {
        let operands = Operands { x, w: &large, y: &large, workspace: &small };
        library
            .prepare(product, operands, epilogue, 4)
            .map(|prepared| prepared.algorithms())
            .map_err(|error| error.to_string())
    };
    assert_eq!(reported(product, &large, Epilogue::Nothing), Ok(2));
    let refused = reported(product, &small, Epilogue::Nothing).unwrap_err();
    assert_eq!(refused, "kernel `cublasLtMatmul`: x takes 2048 bytes, 1000 are given");
    let aux = Epilogue::GeluAuxBias { bias: &small, aux: &small };
    assert!(reported(product, &large, aux).unwrap_err().contains("the auxiliary memory takes 2048 bytes"));
    let integers = Product { inputs: DType::I32, ..product };
    assert!(reported(integers, &large, Epilogue::Nothing).unwrap_err().contains("takes floats only"));
    let other = reported(Product { inputs: DType::F16, ..product }, &large, Epilogue::Nothing).unwrap_err();
    let reported = "cublasLtMatmulAlgoGetHeuristic failed with code 7: an unsupported value or parameter was passed";
    assert_eq!(other, reported);
}
