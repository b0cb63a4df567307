//! Names of tensors in the files of Hugging Face.
//!
//! The joint model of pre-training has those of `ElectraForPreTraining` for the discriminator and the shared embeddings, and for
//! the generator those of `ElectraForMaskedLM`, but `generator.` in place of `electra.`: the names of Google's checkpoints.

use crate::bert::is_of_optimizer;
use crate::tensorflow::{FileName, Layout, of_layer, of_transformer};
use crate::weights::WeightNames;

/// Tensors that files of Hugging Face have beside those of the model, and the ones they are copies of.
pub const TIED: [(&str, &str); 1] = [("generator_lm_head.weight", WORDS)];

/// The names of Hugging Face, which are those used here.
pub static NAMES: WeightNames =
    WeightNames { read: WeightNames::PLAIN.read, is_ignored, torchvision: None, deep_learning_examples: None };

const WORDS: &str = "electra.embeddings.word_embeddings.weight";
const EMBEDDINGS: &str = "electra.embeddings.";
const GENERATOR_HEADS: [&str; 2] = ["generator_predictions.", "generator_lm_head."];

/// How Keras calls the network of a generator, for which its variables have the discriminator's names.
const KERAS_GENERATOR: &str = "tf_electra_for_masked_lm";
/// Layers of heads by the names of NVIDIA's sample for TensorFlow 2.
const KERAS_HEADS: [(&str, &str); 7] = [
    ("start_logits/start_logit_pooler_dense", "start_logits.dense"),
    ("end_logits/end_logit_pooler_dense_0", "end_logits.dense_0"),
    ("end_logits/end_logit_pooler_LayerNorm", "end_logits.LayerNorm"),
    ("end_logits/end_logit_pooler_dense_1", "end_logits.dense_1"),
    ("answer_class/pooler_answer_class_dense_0", "answer_class.dense_0"),
    ("answer_class/pooler_answer_class_dense_1", "answer_class.dense_1"),
    ("qa_outputs", "qa_outputs"),
];

/// Names of Google's checkpoints, which hold the joint model (`electra/...`, `generator/...`), and of Hugging Face's and NVIDIA's
/// models in Keras, where `before` says whose network a variable is of.
pub(crate) fn of_tensorflow(before: &str, name: &str) -> Option<FileName> {
    let (network, rest) = name.split_once('/')?;
    let is_generator = before.split('/').any(|scope| scope.starts_with(KERAS_GENERATOR));
    match network {
        "electra" if is_generator && !rest.starts_with("embeddings/") => of_transformer(&format!("generator/{rest}")),
        "electra" | "generator" => of_transformer(name),
        "discriminator_predictions" => of_transformer(&name.replace("/dense_1/", "/dense_prediction/")),
        "generator_predictions" if rest == "output_bias" => {
            Some(FileName { canonical: "generator_lm_head.bias".to_owned(), layout: Layout::Torch })
        }
        "generator_predictions" | "generator_lm_head" => of_transformer(name),
        _ => {
            let (layer, variable) = name.rsplit_once('/')?;
            let (_, head) = KERAS_HEADS.iter().find(|(keras, _)| *keras == layer)?;
            of_layer(head, variable)
        }
    }
}

/// The name in a discriminator's file of a tensor of the joint model; `None` for what the generator has alone.
pub fn in_discriminator(joint: &str) -> Option<&str> {
    (joint.starts_with("electra.") || joint.starts_with("discriminator_predictions.")).then_some(joint)
}

/// The name in a generator's file of a tensor of the joint model; `None` for what the discriminator has alone.
pub fn in_generator(joint: &str) -> Option<String> {
    if let Some(rest) = joint.strip_prefix("generator.") {
        return Some(format!("electra.{rest}"));
    }
    let is_its_own = GENERATOR_HEADS.iter().any(|head| joint.starts_with(head));
    (is_common(joint) || is_its_own).then(|| joint.to_string())
}

/// The name in the joint model of a tensor of a generator's file, where it may have that name already; `None` for the embeddings, which the
/// discriminator's file has as well, and for copies.
pub fn of_generator(name: &str) -> Option<String> {
    if is_common(name) || is_ignored(name) {
        return None;
    }
    if let Some(rest) = name.strip_prefix("electra.") {
        return Some(format!("generator.{rest}"));
    }
    let is_its_own = name.starts_with("generator.") || GENERATOR_HEADS.iter().any(|head| name.starts_with(head));
    is_its_own.then(|| name.to_string())
}

/// Whether a tensor, in all three, is one that discriminator and generator share.
pub fn is_common(name: &str) -> bool {
    name.starts_with(EMBEDDINGS)
}

/// Tensors of the joint model under the names of two files.
#[derive(Clone, Debug, PartialEq)]
pub struct Split<T> {
    /// Under the names of a file of the discriminator alone.
    pub discriminator: Vec<(String, T)>,
    /// With the copies of [`TIED`].
    pub generator: Vec<(String, T)>,
}

/// Parts the joint model, given as names with anything that stands for their tensors.
pub fn split<T: Copy>(joint: &[(&str, T)]) -> Split<T> {
    let discriminator = joint.iter().filter_map(|&(name, t)| Some((in_discriminator(name)?.to_string(), t))).collect();
    let mut generator: Vec<_> = joint.iter().filter_map(|&(name, t)| Some((in_generator(name)?, t))).collect();
    for (copy, original) in TIED {
        generator.extend(joint.iter().filter(|(name, _)| *name == original).map(|&(_, t)| (copy.to_string(), t)));
    }
    Split { discriminator, generator }
}

/// The joint model of the tensors of two files; its embeddings are those of the discriminator.
pub fn join<T>(
    discriminator: impl IntoIterator<Item = (String, T)>,
    generator: impl IntoIterator<Item = (String, T)>,
) -> Vec<(String, T)> {
    let first = discriminator.into_iter().filter(|(name, _)| in_discriminator(name).is_some());
    let second = generator.into_iter().filter_map(|(name, t)| Some((of_generator(&name)?, t)));
    first.chain(second).collect()
}

/// Copies, constants, and what optimizers keep.
fn is_ignored(name: &str) -> bool {
    TIED.iter().any(|(copy, _)| *copy == name)
        || name == "electra.embeddings.position_ids"
        || name == "electra.embeddings.token_type_ids"
        || is_of_optimizer(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow;

    const JOINT: [&str; 8] = [
        "electra.embeddings.word_embeddings.weight",
        "electra.embeddings.LayerNorm.bias",
        "generator.embeddings_project.weight",
        "generator.encoder.layer.0.output.dense.weight",
        "generator_predictions.LayerNorm.weight",
        "generator_lm_head.bias",
        "electra.encoder.layer.0.output.dense.weight",
        "discriminator_predictions.dense.bias",
    ];

    #[test]
    fn two_files_and_back() {
        let joint: Vec<(&str, usize)> = JOINT.into_iter().zip(0..).collect();
        let Split { discriminator, generator } = split(&joint);
        let named = |list: &[(&str, usize)]| list.iter().map(|&(name, t)| (name.to_string(), t)).collect::<Vec<_>>();
        assert_eq!(discriminator, named(&[joint[0], joint[1], joint[6], joint[7]]));
        let expected = named(&[
            joint[0],
            joint[1],
            ("electra.embeddings_project.weight", 2),
            ("electra.encoder.layer.0.output.dense.weight", 3),
            joint[4],
            joint[5],
            ("generator_lm_head.weight", 0),
        ]);
        assert_eq!(generator, expected);
        let mut back = join(discriminator, generator);
        back.sort_by_key(|&(_, t)| t);
        assert_eq!(back, named(&joint));
    }

    #[test]
    fn names_of_tensorflow() {
        for (name, expected, layout) in [
            ("electra/embeddings/word_embeddings", "electra.embeddings.word_embeddings.weight", Layout::Torch),
            ("electra/embeddings/LayerNorm/gamma", "electra.embeddings.LayerNorm.weight", Layout::Torch),
            ("electra/embeddings_project/kernel", "electra.embeddings_project.weight", Layout::Kernel),
            (
                "electra/encoder/layer_11/attention/self/query/kernel",
                "electra.encoder.layer.11.attention.self.query.weight",
                Layout::Kernel,
            ),
            ("generator/embeddings_project/bias", "generator.embeddings_project.bias", Layout::Torch),
            (
                "generator/encoder/layer_0/output/LayerNorm/beta",
                "generator.encoder.layer.0.output.LayerNorm.bias",
                Layout::Torch,
            ),
            ("generator_predictions/dense/kernel", "generator_predictions.dense.weight", Layout::Kernel),
            ("generator_predictions/LayerNorm/gamma", "generator_predictions.LayerNorm.weight", Layout::Torch),
            ("generator_predictions/output_bias", "generator_lm_head.bias", Layout::Torch),
            ("discriminator_predictions/dense/kernel", "discriminator_predictions.dense.weight", Layout::Kernel),
            (
                "discriminator_predictions/dense_1/kernel",
                "discriminator_predictions.dense_prediction.weight",
                Layout::Kernel,
            ),
            (
                "tf_electra_for_pre_training/electra/embeddings/position_embeddings/embeddings",
                "electra.embeddings.position_embeddings.weight",
                Layout::Torch,
            ),
            (
                "tf_electra_for_pre_training/electra/encoder/layer_._3/intermediate/dense/kernel",
                "electra.encoder.layer.3.intermediate.dense.weight",
                Layout::Kernel,
            ),
            (
                "tf_electra_for_masked_lm/electra/encoder/layer_._3/intermediate/dense/kernel",
                "generator.encoder.layer.3.intermediate.dense.weight",
                Layout::Kernel,
            ),
            ("tf_electra_for_masked_lm/generator_lm_head/bias", "generator_lm_head.bias", Layout::Torch),
            (
                "pretraining_model/tf_electra_for_masked_lm/electra/embeddings/word_embeddings/weight",
                "electra.embeddings.word_embeddings.weight",
                Layout::Torch,
            ),
            (
                "tf_electra_for_question_answering/start_logits/start_logit_pooler_dense/kernel",
                "start_logits.dense.weight",
                Layout::Kernel,
            ),
            ("end_logits/end_logit_pooler_LayerNorm/gamma", "end_logits.LayerNorm.weight", Layout::Torch),
            ("answer_class/pooler_answer_class_dense_1/kernel", "answer_class.dense_1.weight", Layout::Kernel),
        ] {
            assert_eq!(tensorflow::read(name), Some(FileName { canonical: expected.to_owned(), layout }), "{name}");
        }
    }
}
