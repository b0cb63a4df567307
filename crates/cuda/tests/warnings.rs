//! What a device goes on without, and what it says of that: each once.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/everything.rs"]
mod everything;

use bessemer_cuda::{CudaDevice, CudaOptions};
use bessemer_ir::run::Device;
use common::{Knobs, mock_or_skip};
use device::{load, options};
use everything::{everything, submit};

/// A file where a folder is to be, so that nothing can be written there, whoever runs the test.
#[test]
fn files_that_cannot_be_written_are_no_end() {
    let Some(folder) = mock_or_skip("files_that_cannot_be_written_are_no_end") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let tuning = scratch.path().join("tuning");
    let of_device = CudaOptions {
        cubins: file.join("cubins"),
        tuning: Some(tuning.join("engines.json")),
        ..options(folder, false)
    };
    let gpu = CudaDevice::open(&of_device).unwrap();
    std::fs::write(&tuning, "in the way").unwrap();
    for _ in 0..2 {
        let mut executor = load(&gpu, &everything());
        let ticket = submit(&mut *executor).unwrap();
        executor.collect(ticket).unwrap();
    }
    let mut warnings = gpu.take_warnings();
    warnings.sort();
    let begins = [
        format!("compiled kernels are not kept: {}", file.join("cubins").display()),
        format!("what was measured is not kept: {}", tuning.join("engines.json").display()),
    ];
    assert!(
        warnings.len() == 2 && warnings.iter().zip(&begins).all(|(said, begin)| said.starts_with(begin)),
        "{warnings:?}"
    );
    assert_eq!(gpu.take_warnings(), [""; 0]);
}

#[test]
fn what_is_not_released_is_said_at_the_next_load() {
    let Some(folder) = mock_or_skip("what_is_not_released_is_said_at_the_next_load") else { return };
    let knobs = Knobs::open(folder);
    knobs.set("reset", 1);
    let gpu = CudaDevice::open(&options(folder, false)).unwrap();
    let released = |gpu: &CudaDevice| {
        let executor = load(gpu, &everything());
        let begun = knobs.get("calls");
        drop(executor);
        (begun, knobs.calls())
    };
    let (begun, calls) = released(&gpu);
    let free = calls[begun as usize..].iter().position(|call| call == "cuMemFree_v2").unwrap() as i64 + 1;
    assert_eq!(gpu.take_warnings(), [""; 0]);
    let executor = load(&gpu, &everything());
    knobs.set("fail_code", 1);
    knobs.set("fail_at", knobs.get("calls") + free);
    drop(executor);
    assert_eq!(knobs.failed(), "cuMemFree_v2");
    drop(load(&gpu, &everything()));
    let expected = "something on the GPU was not released: cuMemFree failed with code 1: CUDA_ERROR_INVALID_VALUE, invalid argument";
    assert_eq!(gpu.take_warnings(), [expected]);
    assert_eq!(gpu.take_warnings(), [""; 0]);
    knobs.set("reset", 1);
}
