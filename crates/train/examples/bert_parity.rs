//! Compares BERT-base at full size with an independent implementation: losses, every gradient, ten steps of AdamW.
//!
//! ```text
//! python peers/pytorch/export_bert_parity.py --out DIR
//! cargo run --release -p bessemer-train --example bert_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

mod common;
#[path = "common/text.rs"]
mod text;

use bessemer_models::bert::{BertConfig, BertOptions, NAMES, forward_loss, train};
use bessemer_nn::Ranks;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::compare("bert_parity", "export_bert_parity.py", |dir| {
        let still = text::still(BertConfig::base());
        let options = BertOptions::default();
        let pass = text::losses_and_gradients(dir, &NAMES, |sequences| {
            Ok(forward_loss(&still, sequences, &options, Ranks::default())?)
        })?;
        Ok(pass + text::steps(dir, |sequences, config| Ok(train(&still, sequences, &options, config)?))?)
    })
}
