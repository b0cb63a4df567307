//! A device that breaks while it computes: one error, the same from every call, and nothing more is asked of the driver.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/everything.rs"]
mod everything;

use bessemer_cuda::driver::{Context, Driver};
use bessemer_cuda::{Check, CudaDevice, CudaOptions, CudaTarget};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::Plan;
use bessemer_ir::run::{Device, Executor, Phase, RunError, StateBinding, StateLayout, StateStore, Ticket};
use common::{Knobs, mock_or_skip};
use device::options;
use everything::{everything, normal, submit};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

/// What the driver says of an illegal address.
const MEANING: &str = "failed with code 700: CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered";

struct Loaded {
    executor: Box<dyn Executor>,
    state: Arc<dyn StateStore>,
    gpu: CudaDevice,
}

fn plan() -> Plan {
    compile(&everything(), &CudaTarget, &CompileOptions::default()).unwrap()
}

fn load(folder: &Path, eager: bool, check: Check) -> Loaded {
    let gpu = CudaDevice::open(&CudaOptions { check, ..options(folder, eager) }).unwrap();
    let plan = plan();
    let state = gpu.new_state(StateLayout::of_plan(&plan)).unwrap();
    state.write("v", &normal(320, 0)).unwrap();
    let executor = gpu.load(plan, &state, &StateBinding::default()).unwrap();
    Loaded { executor, state, gpu }
}

fn step(executor: &mut dyn Executor) -> Result<(), RunError> {
    let ticket = submit(executor)?;
    executor.collect(ticket).map(|_| ())
}

/// What every call that may fail says.
fn errors(Loaded { executor, state, gpu }: &mut Loaded) -> Vec<(&'static str, Option<String>)> {
    fn said<T>(result: Result<T, impl Display>) -> Option<String> {
        result.err().map(|error| error.to_string())
    }
    vec![
        ("feed", said(executor.feed(&[("x", &normal(288, 1))]))),
        ("accumulate", said(executor.accumulate())),
        ("submit", said(executor.submit())),
        ("run", said(executor.run())),
        ("collect", said(executor.collect(Ticket(0)))),
        ("output", said(executor.output("chosen"))),
        ("compute_invariants", said(executor.compute_invariants())),
        ("profile", said(executor.profile())),
        ("find_non_finite", said(executor.find_non_finite(Phase::Update))),
        ("read", said(state.read("v", &mut [0; 320 * 4]))),
        ("write", said(state.write("v", &normal(320, 0)))),
        ("open_libraries", said(gpu.open_libraries())),
        ("new_state", said(gpu.new_state(StateLayout::of_plan(&plan())))),
        ("load", said(gpu.load(plan(), state, &StateBinding::default()))),
    ]
}

/// Steps are launched, recorded and replayed, or launched one by one, and waited for or not.
#[test]
fn a_device_that_is_lost_gives_one_error_from_then_on() {
    let Some(folder) = mock_or_skip("a_device_that_is_lost_gives_one_error_from_then_on") else { return };
    let knobs = Knobs::open(folder);
    let libraries = ["libcudnn.so.9", "libcublasLt.so.13"].map(|library| Knobs::of(folder, library));
    let calls_of_libraries = || libraries.each_ref().map(|knobs| knobs.get("calls"));
    for (eager, check) in [(false, Check::Nothing), (true, Check::Nothing), (true, Check::Errors)] {
        knobs.set("reset", 1);
        let ends: Vec<i64> = {
            let mut loaded = load(folder, eager, check);
            let ran = |_| {
                step(&mut *loaded.executor).unwrap();
                knobs.get("ran")
            };
            (0..4).map(ran).collect()
        };
        for (number, broken) in [(1, 0), (ends[0] / 2, 0), (ends[0], 0), (ends[0] + 1, 1), (ends[3], 3)] {
            knobs.set("reset", 1);
            knobs.set("lost_at", number);
            let mut loaded = load(folder, eager, check);
            let failed = (0..4).find_map(|number| step(&mut *loaded.executor).err().map(|error| (number, error)));
            let (failed, error) = failed.expect("the device breaks");
            let (message, what) = (error.to_string(), format!("kernel {number}, eager {eager}, check {check:?}"));
            assert_eq!(failed, broken, "{what}");
            assert!(message.contains(MEANING) && !message.contains('\n'), "{what}: {message}");
            assert!(message.ends_with("; the GPU is lost to this process"), "{what}: {message}");
            let place = match check {
                Check::Nothing => format!(", in step {broken} (`--eager"),
                Check::Errors | Check::Memory => format!(", in step {broken} at "),
            };
            assert!(message.contains(&place), "{what}: {message}");
            let calls = knobs.get("calls");
            for (call, said) in errors(&mut loaded) {
                assert_eq!(said.as_ref(), Some(&message), "{what}: {call}");
            }
            let of_libraries = calls_of_libraries();
            let Loaded { executor, state, gpu } = loaded;
            drop((executor, state));
            assert_eq!(gpu.memory(), [], "{what}");
            drop(gpu);
            assert_eq!(knobs.get("calls"), calls, "{what}: {:?}", &knobs.calls()[calls as usize..]);
            assert_eq!(calls_of_libraries(), of_libraries, "{what}: nothing of cuDNN's and cuBLASLt's is released");
        }
    }
    knobs.set("reset", 1);
}

/// All codes of which the driver's documentation says that the process must end.
#[test]
fn codes_that_end_a_context_are_not_asked_again() {
    let Some(folder) = mock_or_skip("codes_that_end_a_context_are_not_asked_again") else { return };
    let knobs = Knobs::open(folder);
    for code in [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999] {
        knobs.set("reset", 1);
        let driver = Driver::open(&folder.join("libcuda.so.1")).unwrap();
        let context = Context::new(&driver, 0).unwrap();
        context.synchronize().unwrap();
        knobs.set("fail_code", code);
        knobs.set("fail_at", knobs.get("calls") + 2);
        let first = context.synchronize().unwrap_err().to_string();
        assert_eq!(knobs.failed(), "cuCtxSynchronize", "{code}");
        assert!(
            first.contains(&format!("code {code}: ")) && first.ends_with("the GPU is lost to this process"),
            "{first}"
        );
        let calls = knobs.get("calls");
        assert_eq!(context.synchronize().unwrap_err().to_string(), first);
        assert_eq!(knobs.get("calls"), calls, "{code}");
    }
    knobs.set("reset", 1);
}
