//! Names of published checkpoints.

use crate::tensorflow::{FileName, of_transformer};
use crate::weights::{WeightNames, without_module};

/// Tensors that files of Hugging Face have beside those of the model, and the ones they are copies of.
pub const TIED: [(&str, &str); 2] = [
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
];

/// The names of Hugging Face's `BertForPreTraining`, which are those used here, and of NVIDIA's PyTorch recipe (`dense_act`).
pub static NAMES: WeightNames = WeightNames { read, is_ignored, torchvision: None, deep_learning_examples: None };

fn read(name: &str) -> String {
    let name = without_module(name).replace("dense_act", "dense");
    name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
}

/// What Hugging Face's models in Keras put before the names of heads, so that these differ.
const KERAS_HEADS: [&str; 2] = ["mlm___", "nsp___"];

/// Names of Google's checkpoints (`bert/...`, `cls/...`), and of Hugging Face's models in Keras.
pub(crate) fn of_tensorflow(_: &str, name: &str) -> Option<FileName> {
    let name = KERAS_HEADS.iter().find_map(|task| name.strip_prefix(task)).unwrap_or(name);
    if name.starts_with("bert/") || name.starts_with("cls/") { of_transformer(name) } else { None }
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
    use crate::tensorflow::{self, Layout};

    #[test]
    fn names_of_tensorflow() {
        for (name, expected, layout) in [
            ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", Layout::Torch),
            ("bert/embeddings/word_embeddings/weight", "bert.embeddings.word_embeddings.weight", Layout::Torch),
            ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight", Layout::Torch),
            (
                "bert/encoder/layer_11/attention/self/query/kernel",
                "bert.encoder.layer.11.attention.self.query.weight",
                Layout::Kernel,
            ),
            ("bert/encoder/layer_3/output/LayerNorm/beta", "bert.encoder.layer.3.output.LayerNorm.bias", Layout::Torch),
            ("bert/pooler/dense/bias", "bert.pooler.dense.bias", Layout::Torch),
            ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", Layout::Kernel),
            ("cls/predictions/output_bias", "cls.predictions.bias", Layout::Torch),
            ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", Layout::Torch),
            ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias", Layout::Torch),
            (
                "tf_bert_for_pre_training/nsp___cls/seq_relationship/kernel",
                "cls.seq_relationship.weight",
                Layout::Kernel,
            ),
            ("tf_bert_for_pre_training/mlm___cls/predictions/bias", "cls.predictions.bias", Layout::Torch),
        ] {
            assert_eq!(tensorflow::read(name), Some(FileName { canonical: expected.to_owned(), layout }));
        }
        let of_optimizer = "bert/pooler/dense/kernel/adam_m";
        assert!(
            tensorflow::read(of_optimizer).is_none() && NAMES.ignores(of_optimizer) && NAMES.ignores("global_step")
        );
    }

    #[test]
    fn names_of_pytorch() {
        for (name, expected) in [
            ("bert.encoder.layer.0.intermediate.dense_act.weight", "bert.encoder.layer.0.intermediate.dense.weight"),
            ("cls.predictions.transform.LayerNorm.gamma", "cls.predictions.transform.LayerNorm.weight"),
        ] {
            assert_eq!(read(name), expected);
        }
    }
}
