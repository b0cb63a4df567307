//! Whether a vocabulary is the one that weights were trained with.

use crate::error::TrainError;
use crate::loaded_weights::LoadedWeights;
use crate::recipe::Recipe;
use crate::tasks::family::{EmbeddingTable, Family};
use crate::tasks::registry;
use bessemer_data::text::{VOCABULARY_FILE, Vocabulary, VocabularyIdentity};
use bessemer_weights::NamedTensor;
use std::path::{Path, PathBuf};

/// Weights, and what is known of their vocabulary.
pub(crate) struct Weights<'a> {
    /// Of the model that they are for.
    pub family: &'static dyn Family,
    pub tensors: &'a [NamedTensor<'static>],
    /// Where they come from, for messages.
    pub origin: &'a str,
    pub recipe: Option<&'a Recipe>,
    /// Of the vocabulary that they were trained with; unknown for weights of others, and of runs before format 2.
    pub vocabulary: Option<&'a VocabularyIdentity>,
}

impl LoadedWeights {
    pub(crate) fn weights(&self) -> Weights<'_> {
        let Self { family, tensors, origin, recipe, vocabulary, is_tensorflow: _ } = self;
        Weights { family: *family, tensors, origin, recipe: recipe.as_ref(), vocabulary: vocabulary.as_ref() }
    }
}

impl Weights<'_> {
    /// Checks a vocabulary; `place` is where it comes from, for messages. Where that of the weights is unknown, their table of
    /// embeddings must be as large as the vocabulary, but for padding.
    ///
    /// # Errors
    /// Another vocabulary than that of the weights.
    pub(crate) fn check_vocabulary(&self, given: &VocabularyIdentity, place: &str) -> Result<(), TrainError> {
        let refuse =
            |allowed: String| Err(TrainError::setting("the vocabulary", format!("{place} ({given})"), allowed));
        let origin = self.origin;
        match (self.vocabulary, self.family.embeddings(self.tensors, self.recipe)) {
            (Some(known), _) if known == given => Ok(()),
            (Some(known), _) => refuse(format!("{origin} was trained with another one ({known})")),
            (None, Some(EmbeddingTable { tokens, multiple })) => {
                let possible = given.entries..=given.entries.next_multiple_of(multiple);
                if possible.contains(&tokens) {
                    Ok(())
                } else {
                    refuse(format!("{origin} has embeddings of {tokens} words"))
                }
            }
            (None, None) => Ok(()),
        }
    }
}

/// The vocabulary of trained weights of a path: the given file, or the one beside them.
///
/// # Errors
/// No vocabulary, or one that cannot be read or is not that of the weights.
pub(crate) fn vocabulary_for(
    trained: &LoadedWeights,
    weights: &Path,
    given: Option<&Path>,
) -> Result<Vocabulary, TrainError> {
    let path = given.map(Path::to_owned).or_else(|| vocabulary_beside(weights)).ok_or_else(|| {
        let allowed = format!("there is no {VOCABULARY_FILE} beside {} (--vocab)", weights.display());
        TrainError::setting("the vocabulary", "not given", allowed)
    })?;
    let vocabulary = Vocabulary::open(&path)?;
    trained.weights().check_vocabulary(&vocabulary.identity(), &path.display().to_string())?;
    Ok(vocabulary)
}

/// The vocabulary beside weights: in their folder, in that of the run they are in, or with the first of two
/// networks in their folder.
pub(crate) fn vocabulary_beside(weights: &Path) -> Option<PathBuf> {
    let parts = registry::joint_weights().map(|joint| weights.join(joint.folders[0]));
    let folders = weights.ancestors().take(3).map(Path::to_owned).chain(parts);
    folders.map(|folder| folder.join(VOCABULARY_FILE)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors(vocab_size: usize) -> Vec<NamedTensor<'static>> {
        let tensor = |name: &str, shape: [usize; 2]| {
            let values = vec![0.0; shape[0] * shape[1]];
            let tensor = NamedTensor::from_f32(name, shape, &values).unwrap();
            NamedTensor { data: tensor.data.into_owned().into(), ..tensor }
        };
        let query = "bert.encoder.layer.0.attention.self.query.weight";
        vec![tensor("bert.embeddings.word_embeddings.weight", [vocab_size, 2]), tensor(query, [2, 2])]
    }

    fn family() -> &'static dyn Family {
        registry::find("bert-tiny").unwrap().family()
    }

    fn identity(entries: u64, sha256: &str) -> VocabularyIdentity {
        VocabularyIdentity { entries, sha256: sha256.to_owned() }
    }

    #[test]
    fn another_vocabulary_is_named() {
        let (known, tensors) = (identity(30_522, "aa"), tensors(30_528));
        let weights =
            Weights { family: family(), tensors: &tensors, origin: "run", recipe: None, vocabulary: Some(&known) };
        weights.check_vocabulary(&known, "v.txt").unwrap();
        let error = weights.check_vocabulary(&identity(30_522, "bb"), "v.txt").unwrap_err().to_string();
        let expected = "the vocabulary is v.txt (30522 entries, SHA-256 bb); run was trained with another one (30522 entries, \
                        SHA-256 aa)";
        assert_eq!(error, expected);
    }

    #[test]
    fn sizes_are_compared_where_nothing_else_is_known() {
        let tensors = tensors(30_528);
        let weights = Weights { family: family(), tensors: &tensors, origin: "run", recipe: None, vocabulary: None };
        let check = |entries: u64| weights.check_vocabulary(&identity(entries, "aa"), "v.txt");
        assert!([30_522, 30_528, 30_465].into_iter().all(|entries| check(entries).is_ok()));
        assert!([30_529, 30_464, 5_000].into_iter().all(|entries| check(entries).is_err()));
        assert!(check(5_000).unwrap_err().to_string().ends_with("; run has embeddings of 30528 words"));
        let other = Weights { family: family(), tensors: &[], origin: "run", recipe: None, vocabulary: None };
        other.check_vocabulary(&identity(7, "aa"), "v.txt").unwrap();
    }
}
