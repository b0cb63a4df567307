//! Launches that touch memory which is not their own, or leave some of their own as it was: what a device says that checks that.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/everything.rs"]
mod everything;

use bessemer_cuda::{Check, CudaDevice, CudaOptions};
use bessemer_ir::run::{Device, RunError};
use common::{Knobs, mock_or_skip};
use device::{options, plan};
use everything::{everything, submit};
use std::path::Path;

/// Scalars of a first step, of which kernel number `number` does what the knob of this name says.
fn first_step(folder: &Path, check: Check, (knob, number): (&str, i64)) -> Result<Vec<(String, f32)>, RunError> {
    let knobs = Knobs::open(folder);
    knobs.set("reset", 1);
    knobs.set(knob, number);
    let gpu = CudaDevice::open(&CudaOptions { check, ..options(folder, true) }).unwrap();
    let gpu: &dyn Device = &gpu;
    let mut executor = gpu.load_alone(plan(&everything())).unwrap();
    let ticket = submit(&mut *executor)?;
    executor.collect(ticket).map(|results| results.scalars.clone())
}

/// A kernel that leaves its output as it was in the first or in the second run of its call, and one that changes the byte in front of its
/// output, which belongs to another tensor. Where nothing is wrong the check changes no bit.
#[test]
fn memory_of_others_and_results_that_are_not_written_are_told() {
    let Some(folder) = mock_or_skip("memory_of_others_and_results_that_are_not_written_are_told") else { return };
    let checked = |knob, number| first_step(folder, Check::Memory, (knob, number));
    assert_eq!(checked("idle_at", 0).unwrap(), first_step(folder, Check::Nothing, ("idle_at", 0)).unwrap());
    let said = |knob, number| checked(knob, number).unwrap_err().to_string();
    // The convolution launches one kernel, twice; then comes the softmax.
    for number in [3, 4] {
        let message = said("idle_at", number);
        let expected = "byte 0 of 11520 of output 0 is not written, or follows from memory that is not";
        assert!(message.starts_with("fusion(") && message.ends_with(expected), "{message}");
    }
    let message = said("stray_at", 3);
    let expected = "launch 1 of 1 changes byte 3839 of 18688 of the plan's arena, which is not its own";
    assert!(message.starts_with("fusion(") && message.ends_with(expected), "{message}");
}
