//! The conformance suite over the mock of a GPU.

#[path = "common/backend.rs"]
mod backend;
mod common;
#[path = "common/device.rs"]
mod device;

use backend::Gpu;
use bessemer_testkit::{check, half_of_cases};
use common::mock_or_skip;
use device::open;

fn run_half(test: &str, half: usize) {
    let Some(folder) = mock_or_skip(test) else { return };
    let gpu = Gpu { device: open(folder, true).unwrap(), problems: 1 };
    match check(&half_of_cases(half), &[&gpu], &[]) {
        Ok(report) => println!("{report}"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn even_cases() {
    run_half("even_cases", 0);
}

#[test]
fn odd_cases() {
    run_half("odd_cases", 1);
}
