//! What steps of models of text that are measured share.

use crate::workload::{Fill, NamedSetting, StepSettings};
use bessemer_models::bert::BertConfig;
use bessemer_nn::Activation;
use serde_json::{Value, json};

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges.
pub(in crate::tasks) const RATE: f64 = 1e-4;

/// Settings for sequences of this length, with the given number of predictions.
pub(in crate::tasks) fn usual_step(sequence_length: usize, predictions: usize) -> StepSettings {
    StepSettings { sequence_length, predictions, ..StepSettings::default() }
}

/// Those settings that all models of text have, by name.
pub(in crate::tasks) fn step_settings(settings: &StepSettings) -> Vec<NamedSetting> {
    vec![
        ("accumulation", settings.accumulation.into()),
        ("sequence_length", settings.sequence_length.into()),
        ("dropout", settings.dropout.into()),
        ("clip", settings.clip.into()),
    ]
}

/// An encoder with the dropout of a step.
pub(in crate::tasks) fn with_dropout(config: BertConfig, settings: &StepSettings) -> BertConfig {
    let dropout = settings.dropout;
    BertConfig { hidden_dropout_prob: dropout, attention_probs_dropout_prob: dropout, ..config }
}

/// The feeds that all models of text have, without padding, and those of one of them.
pub(in crate::tasks) fn with_tokens<const N: usize>(own: [(&'static str, Fill); N]) -> Vec<(&'static str, Fill)> {
    [("segment_ids", Fill::Below(2)), ("input_mask", Fill::One)].into_iter().chain(own).collect()
}

/// Sizes of an encoder for other frameworks.
pub(in crate::tasks) fn encoder_sizes(config: &BertConfig, settings: &StepSettings) -> Value {
    let activation = match config.hidden_act {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
    };
    json!({
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": activation,
        "sequence_length": settings.sequence_length,
    })
}
