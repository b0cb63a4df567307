//! Names of published checkpoints.

/// Tensors that files of Hugging Face have beside those of the model, and the ones they are copies of.
pub const TIED: [(&str, &str); 2] = [
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
];

/// The name used here for a tensor of Google's TensorFlow checkpoints (`bert/...`, `cls/...`) or of NVIDIA's PyTorch recipe
/// (`dense_act`), and whether its matrix is stored as `[in, out]`; `None` for other tensors than BERT's.
pub fn canonical(name: &str) -> Option<(String, bool)> {
    if name.starts_with("bert.") || name.starts_with("cls.") {
        let name = name.replace("dense_act", "dense");
        return Some((
            name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"),
            false,
        ));
    }
    if !name.starts_with("bert/") && !name.starts_with("cls/") {
        return None;
    }
    let parts: Vec<String> = name.split('/').map(part).collect();
    let mut renamed = parts.join(".");
    if renamed.ends_with("_embeddings") {
        renamed += ".weight";
    }
    Some((renamed, name.ends_with("/kernel")))
}

/// One part of a path of Google's.
fn part(part: &str) -> String {
    match part {
        "kernel" | "gamma" | "output_weights" => "weight".to_string(),
        "beta" | "output_bias" => "bias".to_string(),
        _ => part.strip_prefix("layer_").map_or_else(|| part.to_string(), |number| format!("layer.{number}")),
    }
}

/// Whether a file may hold the tensor without the model wanting it: copies, constants, and what optimizers keep.
pub(crate) fn is_ignored(canonical: &str) -> bool {
    let optimizer = ["adam_m", "adam_v"].iter().any(|suffix| canonical.ends_with(suffix));
    TIED.iter().any(|(copy, _)| *copy == canonical)
        || canonical == "bert.embeddings.position_ids"
        || canonical == "bert.embeddings.token_type_ids"
        || canonical == "global_step"
        || optimizer
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
            assert_eq!(canonical(name), Some((expected.to_string(), transposed)));
        }
        assert_eq!(canonical("layer1.0.conv1.weight"), None);
    }
}
