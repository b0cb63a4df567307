//! Narrow BERTs against Hugging Face's in `f64`: losses, every gradient, ten steps of AdamW.

use crate::case::Case;
use bessemer_models::bert::{BertOptions, forward_loss, train};
use bessemer_nn::Ranks;

const FOLDERS: [&str; 2] = ["bert_gelu", "bert_gelu_new"];

#[test]
fn one_pass() {
    for case in FOLDERS.map(Case::open) {
        case.check_pass(
            forward_loss(&case.bert(), case.sequences(), &BertOptions::default(), Ranks::default())
                .expect("a legal model"),
        );
    }
}

#[test]
fn ten_steps() {
    for case in FOLDERS.map(Case::open) {
        case.check_steps(|training| {
            train(&case.bert(), case.sequences(), &BertOptions::default(), training).expect("a legal model")
        });
    }
}
