//! Compares the pre-training of ELECTRA-base at full size with an independent implementation: losses and every gradient of
//! generator and discriminator, with the same samples, and ten steps of AdamW.
//!
//! ```text
//! python peers/pytorch/export_electra_parity.py --out DIR
//! cargo run --release -p bessemer-train --example electra_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

mod common;
#[path = "common/text.rs"]
mod text;

use bessemer_models::electra::names::NAMES;
use bessemer_models::electra::{ElectraConfig, PretrainingOptions, forward_loss, train};
use bessemer_nn::Ranks;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::compare("electra_parity", "export_electra_parity.py", |dir| {
        let base = ElectraConfig::base();
        let still = ElectraConfig { encoder: text::still(base.encoder), ..base };
        let options = PretrainingOptions::new(1.0 / 3.0);
        let pass = text::losses_and_gradients(dir, &NAMES, |sequences| {
            Ok(forward_loss(&still, sequences, &options, Ranks::default())?)
        })?;
        Ok(pass + text::steps(dir, |sequences, config| Ok(train(&still, sequences, &options, config)?))?)
    })
}
