//! The task of a family of models that is pre-trained on text.

use super::{Part, TextFields, TextSource, VocabularyFields, WordBias};
use crate::checkpoint::publish_content;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::setup::RunShape;
use crate::tasks::loaded::{Feeder, Loaded};
use crate::tasks::{Batches, Evaluation, LoadOptions, MetricSchema, Score, Task};
use bessemer_data::text::{VOCABULARY_FILE, Vocabulary, VocabularyIdentity};
use bessemer_data::{BatchRange, DataError, Sampler, SamplerOptions, Samples, Share};
use bessemer_models::Model;
use bessemer_models::bert::Sequences;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The networks of a family: those of one recipe, or of trained weights.
pub(in crate::tasks) trait TextNetworks: Sized + Clone + 'static {
    type Set: Samples;
    type Feeder: Feeder + Clone + 'static;

    const TERMS: &'static MetricSchema;
    /// The bias of each token's score.
    const WORD_BIAS: &'static str;

    /// What the recipe says of sequences and of the vocabulary.
    ///
    /// # Errors
    /// A recipe of another family.
    fn fields(recipe: &Recipe) -> Result<(&TextFields, &VocabularyFields), TrainError>;

    /// Most tokens of a sequence that are predicted.
    ///
    /// # Errors
    /// A recipe of another family.
    fn predictions(recipe: &Recipe) -> Result<usize, TrainError>;

    /// # Errors
    /// Data that is not there or does not suit the recipe.
    fn set(part: Part<'_>, recipe: &Recipe) -> Result<Self::Set, TrainError>;

    /// The networks of a recipe for a vocabulary of the given number of tokens, in a file if they are of a text.
    ///
    /// # Errors
    /// A model of another family; sequences that are longer than it can take.
    fn of(recipe: &Recipe, vocab_size: usize, vocabulary: Option<&Path>) -> Result<Self, TrainError>;

    fn info(set: &Self::Set) -> DatasetInfo;

    /// # Errors
    /// Data that cannot be read.
    fn word_counts(set: &Self::Set) -> Result<Vec<u64>, DataError>;

    /// # Errors
    /// Data that cannot be read.
    fn unigram_entropy(set: &Self::Set) -> Result<f64, DataError>;

    /// Of training.
    fn feeder() -> Self::Feeder;

    /// Of evaluations on a set, in batches of the given number of sequences.
    ///
    /// # Errors
    /// Data that cannot be read.
    fn evaluation_feeder(&self, set: &Self::Set, batch_size: usize) -> Result<Self::Feeder, DataError>;

    /// Words of the vocabulary, those included that never come.
    fn vocab_size(&self) -> usize;

    /// The graph of a whole training step as the recipe asks for it.
    ///
    /// # Errors
    /// A size that is not possible; a precision that CPUs do not train in.
    fn training_step(&self, recipe: &Recipe, sequences: Sequences, shape: RunShape) -> Result<Model, TrainError>;

    /// The forward pass of an evaluation.
    ///
    /// # Errors
    /// A size that is not possible.
    fn evaluation(&self, sequences: Sequences) -> Result<Model, TrainError>;

    fn score(&self, unigram_entropy: f64) -> Box<dyn Score>;
}

/// What there is to know of a set of sequences.
pub(in crate::tasks) struct DatasetInfo {
    pub len: usize,
    pub sequence_length: usize,
    pub predictions: usize,
    pub vocab_size: usize,
    pub identity: String,
}

impl DatasetInfo {
    fn sequences(&self, batch: usize) -> Sequences {
        Sequences { batch, length: self.sequence_length, predictions: self.predictions }
    }
}

/// The text and the networks of a recipe.
pub(in crate::tasks) struct TextTask<F: TextNetworks> {
    recipe: Recipe,
    networks: F,
    /// With its file; random words have none.
    vocabulary: Option<(PathBuf, VocabularyIdentity)>,
    set: Arc<F::Set>,
    held_out: Option<Arc<F::Set>>,
    sampler: Sampler,
}

impl<F: TextNetworks> TextTask<F> {
    pub(crate) fn open(recipe: &Recipe) -> Result<Self, TrainError> {
        let (source, predictions) = (TextSource::of(recipe)?, F::predictions(recipe)?);
        let (text, _) = F::fields(recipe)?;
        let open = |part| Ok::<_, TrainError>(Arc::new(F::set(part, recipe)?));
        let set = open(source.training(recipe, text, predictions))?;
        let held_out = source.held_out(recipe, text, predictions).map(open).transpose()?;
        let (info, vocabulary) = (F::info(&set), source.vocabulary_file(text));
        let networks = F::of(recipe, info.vocab_size, vocabulary.as_deref())?;
        let vocabulary = match vocabulary {
            Some(path) => Some((path.clone(), Vocabulary::open(&path)?.identity())),
            None => None,
        };
        let order = SamplerOptions::train(recipe.train.batch_size as usize, recipe.train.seed);
        let sampler = Sampler::new(info.len, order)?;
        Ok(Self { recipe: recipe.clone(), networks, vocabulary, set, held_out, sampler })
    }
}

impl<F: TextNetworks> Task for TextTask<F> {
    fn metric_schema(&self) -> &'static MetricSchema {
        F::TERMS
    }

    fn training_step(&self, shape: RunShape) -> Result<Model, TrainError> {
        let sequences = F::info(&self.set).sequences(shape.batch_size);
        self.networks.training_step(&self.recipe, sequences, shape)
    }

    fn data_identity(&self) -> String {
        F::info(&self.set).identity
    }

    fn vocabulary(&self) -> Option<VocabularyIdentity> {
        self.vocabulary.as_ref().map(|(_, identity)| identity.clone())
    }

    fn batches_per_epoch(&self) -> u64 {
        self.sampler.batches() as u64
    }

    fn training_batches(&self, range: BatchRange) -> Result<Box<dyn Batches>, TrainError> {
        let (set, load) = (Arc::clone(&self.set), LoadOptions::of(&self.recipe));
        Ok(Box::new(Loaded::training(set, self.sampler.clone(), &load, range, F::feeder())?))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let Some(set) = self.held_out.clone() else { return Ok(None) };
        let batch_size = self.recipe.eval.batch_size.unwrap_or(self.recipe.train.batch_size) as usize;
        Ok(Some(Box::new(HeldOut::new(self.networks.clone(), set, LoadOptions::of(&self.recipe), batch_size)?)))
    }

    fn initial_values(&self) -> Result<Vec<(&'static str, Vec<f32>)>, TrainError> {
        if F::fields(&self.recipe)?.1.word_bias == WordBias::Zeros {
            return Ok(Vec::new());
        }
        let counts = F::word_counts(&self.set)?;
        Ok(vec![(F::WORD_BIAS, log_frequencies(&counts, self.networks.vocab_size()))])
    }

    fn write_files(&self, run: &Path) -> Result<(), TrainError> {
        let Some((vocabulary, _)) = &self.vocabulary else { return Ok(()) };
        copy_vocabulary(vocabulary, run)
    }
}

/// Copies a vocabulary into a run, if it does not lie there.
fn copy_vocabulary(vocabulary: &Path, run: &Path) -> Result<(), TrainError> {
    let text = fs::read(vocabulary).map_err(TrainError::io(vocabulary, "read the vocabulary"))?;
    Ok(publish_content(&run.join(VOCABULARY_FILE), &text)?)
}

/// Logarithms of the frequencies of `vocab_size` tokens, each counted once more than it comes; those past the counts never come.
fn log_frequencies(counts: &[u64], vocab_size: usize) -> Vec<f32> {
    let total = (counts.iter().sum::<u64>() + vocab_size as u64) as f64;
    let count = |token| counts.get(token).copied().unwrap_or(0) + 1;
    (0..vocab_size).map(|token| (count(token) as f64 / total).ln() as f32).collect()
}

/// Text that was not trained on, and the networks for it.
pub(in crate::tasks) struct HeldOut<F: TextNetworks> {
    networks: F,
    set: Arc<F::Set>,
    feeder: F::Feeder,
    load: LoadOptions,
    batch_size: usize,
    unigram_entropy: f64,
}

impl<F: TextNetworks> HeldOut<F> {
    pub(crate) fn new(networks: F, set: Arc<F::Set>, load: LoadOptions, batch_size: usize) -> Result<Self, TrainError> {
        let unigram_entropy = F::unigram_entropy(&set)?;
        let feeder = networks.evaluation_feeder(&set, batch_size)?;
        Ok(Self { networks, set, feeder, load, batch_size, unigram_entropy })
    }
}

impl<F: TextNetworks> Evaluation for HeldOut<F> {
    fn metric_schema(&self) -> &'static MetricSchema {
        F::TERMS
    }

    fn models(&self, batch_size: usize) -> Result<Vec<Model>, TrainError> {
        Ok(vec![self.networks.evaluation(F::info(&self.set).sequences(batch_size))?])
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn batches(&self, _part: usize, share: Share) -> Result<Box<dyn Batches>, TrainError> {
        let (set, samples) = (Arc::clone(&self.set), F::info(&self.set).len);
        Ok(Box::new(Loaded::evaluation(set, samples, &self.load, self.batch_size, share, self.feeder.clone())?))
    }

    fn score(&self) -> Result<Box<dyn Score + '_>, TrainError> {
        Ok(self.networks.score(self.unigram_entropy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_is_copied_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (given, run) = (folder.path().join("given.txt"), folder.path().join("run"));
        fs::create_dir(&run).unwrap();
        let copy = run.join(VOCABULARY_FILE);
        fs::write(&given, "a\nb\n").unwrap();
        copy_vocabulary(&given, &run).unwrap();
        assert_eq!(fs::read_to_string(&copy).unwrap(), "a\nb\n");
        copy_vocabulary(&copy, &run).unwrap();
        assert_eq!(fs::read_to_string(&copy).unwrap(), "a\nb\n", "a copy of itself");

        // What is replaced keeps its content to the end.
        let mut old = fs::File::open(&copy).unwrap();
        fs::write(&given, "c\n").unwrap();
        copy_vocabulary(&given, &run).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut old, &mut text).unwrap();
        assert_eq!((text.as_str(), fs::read_to_string(&copy).unwrap().as_str()), ("a\nb\n", "c\n"));
        assert_eq!(fs::read_dir(&run).unwrap().count(), 1);
    }

    #[test]
    fn frequencies_are_those_of_a_distribution() {
        let logs = log_frequencies(&[3, 0, 5], 4);
        let expected = [4.0_f32, 1.0, 6.0, 1.0].map(|count| (count / 12.0).ln());
        assert_eq!(logs, expected);
    }
}
