//! Compares ResNet-50 at full size with an independent implementation: logits, every gradient, ten SGD steps.
//!
//! ```text
//! python peers/pytorch/export_resnet50_parity.py --out DIR --images DATA/val
//! cargo run --release -p bessemer-train --example resnet50_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

mod common;
#[path = "common/images.rs"]
mod images;

use common::compare;
use images::Parity;
use std::process::ExitCode;

fn main() -> ExitCode {
    compare("resnet50_parity", "export_resnet50_parity.py", |dir| Parity::open(dir, "resnet50", |_, _| Ok(()))?.run())
}
