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

/// A file where a folder is to be, and a link to nowhere, so that nothing can be written there, whoever runs the test.
#[test]
fn files_that_cannot_be_written_are_no_end() {
    let Some(folder) = mock_or_skip("files_that_cannot_be_written_are_no_end") else { return };
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let tuning = scratch.path().join("tuning");
    std::os::unix::fs::symlink(scratch.path().join("nowhere"), &tuning).unwrap();
    let of_device = CudaOptions {
        cubins: file.join("cubins"),
        tuning: Some(tuning.join("engines.json")),
        ..options(folder, false)
    };
    let gpu = CudaDevice::open(&of_device).unwrap();
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

/// What cannot be measured runs by the libraries' first proposals; one warning of each library says why, and the plan has all reasons.
#[test]
fn what_cannot_be_measured_is_said() {
    let Some(folder) = mock_or_skip("what_cannot_be_measured_is_said") else { return };
    let [cudnn, products] = ["libcudnn.so.9", "libcublasLt.so.13"].map(|library| Knobs::of(folder, library));
    let loaded = |failing: &[(&Knobs, &str)]| {
        let scratch = tempfile::tempdir().unwrap();
        let tuning = scratch.path().join("engines.json");
        let of_device = CudaOptions { tuning: Some(tuning.clone()), ..options(folder, false) };
        let gpu = CudaDevice::open(&of_device).unwrap();
        failing.iter().for_each(|(knobs, setting)| knobs.set(setting, 1));
        let near_misses = load(&gpu, &everything()).near_misses();
        failing.iter().for_each(|(knobs, setting)| knobs.set(setting, 0));
        (gpu.take_warnings(), near_misses, tuning.exists())
    };
    let (said, near_misses, is_kept) = loaded(&[]);
    assert!(said.is_empty() && near_misses.is_empty() && is_kept, "{said:?} {near_misses:?}");
    let (said, near_misses, is_kept) = loaded(&[(&cudnn, "fails_all"), (&products, "fails_all")]);
    assert!(!is_kept, "nothing was measured");
    let begins = [
        "1 convolutions could not be planned or measured, and are done by cuDNN's first proposals or without what could be fused with \
         them, such as forward, f32, [2, 6, 6, 4], kernel [3, 3], ",
        "3 products could not be measured, and are done by cuBLASLt's first proposals, such as ",
    ];
    assert!(said.len() == 2 && said.iter().zip(begins).all(|(said, begin)| said.starts_with(begin)), "{said:#?}");
    assert!(said.iter().all(|said| said.contains(" failed with code ")), "{said:#?}");
    assert_eq!(near_misses.len(), 4, "{near_misses:?}");
    // One engine that fails is none to take, and no reason to say so.
    let (said, near_misses, is_kept) = loaded(&[(&cudnn, "fails_first")]);
    assert!(said.is_empty() && near_misses.is_empty() && is_kept, "{said:?} {near_misses:?}");
}
