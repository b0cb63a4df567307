//! The conformance suite over the mock of a GPU.

use crate::backend::Gpu;
use crate::common::mock_or_skip;
use crate::device::open;
use bessemer_testkit::{check, check_networks, half_of_cases};

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

#[test]
fn random_networks() {
    let Some(folder) = mock_or_skip("random_networks") else { return };
    let gpu = Gpu { device: open(folder, true).unwrap(), problems: 1 };
    let result = check_networks(0..6, |network, options| match network.ranks() {
        1 => network.check(&gpu, options),
        _ => Ok(()),
    });
    result.unwrap_or_else(|failures| panic!("{failures}"));
}
