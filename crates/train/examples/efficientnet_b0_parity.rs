//! Compares EfficientNet-B0 at full size with an independent implementation: logits, every gradient, ten SGD steps.
//!
//! ```text
//! python peers/pytorch/export_efficientnet_b0_parity.py --out DIR --images DATA/val
//! cargo run --release -p bessemer-train --example efficientnet_b0_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

mod common;
#[path = "common/images.rs"]
mod images;

use bessemer_models::{BackboneOptions, ModelOptions};
use bessemer_nn::Padding;
use common::{Result, compare};
use images::Parity;
use serde_json::Value;
use std::process::ExitCode;

fn main() -> ExitCode {
    compare("efficientnet_b0_parity", "export_efficientnet_b0_parity.py", |dir| {
        Parity::open(dir, "efficientnet-b0", change)?.run()
    })
}

/// The padding and the epsilon of the exported network.
fn change(options: &mut ModelOptions, expected: &Value) -> Result<()> {
    let BackboneOptions::EfficientNet(backbone) = &mut options.backbone else {
        return Err("efficientnet-b0 has no EfficientNet".into());
    };
    if expected["padding"] == "same" {
        backbone.padding = Padding::Same;
    }
    backbone.norm.eps = expected["bn_eps"].as_f64().ok_or("expected.json lacks bn_eps")?;
    Ok(())
}
