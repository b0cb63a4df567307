//! Kernels of detectors over the mock of a GPU.

use crate::backend::Gpu;
use crate::common::mock_or_skip;
use crate::device::open;
use bessemer_testkit::{CASES, Case, check};

/// Cases of the operations of detectors, whose rules differ from problem to problem: more problems than of other cases.
fn run_cases(test: &str, names: &[&str]) {
    let Some(folder) = mock_or_skip(test) else { return };
    let gpu = Gpu { device: open(folder, true).unwrap(), problems: 10 };
    let cases: Vec<Case> = CASES.iter().copied().filter(|case| names.contains(&case.name)).collect();
    assert_eq!(cases.len(), names.len(), "{test}: cases of these names");
    match check(&cases, &[&gpu], &[]) {
        Ok(report) => println!("{report}"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn reference_boxes_and_codes() {
    run_cases("reference_boxes_and_codes", &["anchors", "encode_boxes", "decode_boxes"]);
}

#[test]
fn matches() {
    run_cases("matches", &["match_boxes"]);
}

#[test]
fn largest_elements() {
    run_cases("largest_elements", &["top_k", "top_k of equal elements"]);
}

#[test]
fn suppression() {
    run_cases("suppression", &["hard suppression", "soft suppression"]);
}

#[test]
fn samples_and_lists() {
    run_cases("samples_and_lists", &["sample_labels", "sample_rows", "pack_rows"]);
}

#[test]
fn features_of_regions() {
    run_cases("features_of_regions", &["roi_align"]);
}

#[test]
fn masks_of_regions() {
    run_cases("masks_of_regions", &["mask_targets"]);
}
