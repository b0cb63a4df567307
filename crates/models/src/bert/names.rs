//! Names of published checkpoints.

use crate::weights::{FileName, WeightNames, without_module};

/// Tensors that files of Hugging Face have beside those of the model, and the ones they are copies of.
pub const TIED: [(&str, &str); 2] = [
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
];

/// The names of Hugging Face's `BertForPreTraining`, which are those used here, of Google's TensorFlow checkpoints (`bert/...`,
/// `cls/...`) and of NVIDIA's PyTorch recipe (`dense_act`).
pub static NAMES: WeightNames =
    WeightNames { read, is_ignored, torchvision: str::to_owned, deep_learning_examples: str::to_owned };

fn read(name: &str) -> FileName {
    let name = without_module(name);
    if !name.starts_with("bert/") && !name.starts_with("cls/") {
        let name = name.replace("dense_act", "dense");
        let name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias");
        return FileName::plain(name);
    }
    let parts: Vec<String> = name.split('/').map(part).collect();
    let mut canonical = parts.join(".");
    if canonical.ends_with("_embeddings") {
        canonical += ".weight";
    }
    FileName { canonical, is_transposed: name.ends_with("/kernel") }
}

/// One part of a path of Google's.
fn part(part: &str) -> String {
    match part {
        "kernel" | "gamma" | "output_weights" => "weight".to_string(),
        "beta" | "output_bias" => "bias".to_string(),
        _ => part.strip_prefix("layer_").map_or_else(|| part.to_string(), |number| format!("layer.{number}")),
    }
}

/// Copies, constants, and what optimizers keep.
fn is_ignored(canonical: &str) -> bool {
    TIED.iter().any(|(copy, _)| *copy == canonical)
        || canonical == "bert.embeddings.position_ids"
        || canonical == "bert.embeddings.token_type_ids"
        || is_of_optimizer(canonical)
}

/// Whether a tensor is what Google's optimizers keep beside the weights.
pub(crate) fn is_of_optimizer(canonical: &str) -> bool {
    canonical == "global_step" || ["adam_m", "adam_v"].iter().any(|suffix| canonical.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_suites() {
        for (name, expected, transposed) in [
            ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", false),
            ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", false),
            (
                "bert/encoder/layer_11/attention/self/query/kernel",
                "bert.encoder.layer.11.attention.self.query.weight",
                true,
            ),
            ("bert/encoder/layer_3/output/LayerNorm/beta", "bert.encoder.layer.3.output.LayerNorm.bias", false),
            ("bert/pooler/dense/bias", "bert.pooler.dense.bias", false),
            ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", true),
            ("cls/predictions/output_bias", "cls.predictions.bias", false),
            ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", false),
            ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias", false),
            (
                "bert.encoder.layer.0.intermediate.dense_act.weight",
                "bert.encoder.layer.0.intermediate.dense.weight",
                false,
            ),
            ("cls.predictions.transform.LayerNorm.gamma", "cls.predictions.transform.LayerNorm.weight", false),
        ] {
            assert_eq!(read(name), FileName { canonical: expected.to_string(), is_transposed: transposed });
        }
    }
}
