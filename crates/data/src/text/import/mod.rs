//! Instances for BERT that other programs have made, brought to TFRecord files that training reads.

mod file;
mod hdf5;
mod parquet;
mod records;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use self::file::{Found, SourceFile};
use super::corpus::hash_file;
use super::folder::{Format, Manifest, Origin, Settings, SplitCounts, part_names, write_vocabulary};
use super::maker::{ExampleShape, Record};
use super::prepare::{Notify, Progress, Stop, check_dupe_factor, count};
use super::{Instance, InstanceOptions, Vocabulary};
use crate::new_folder::{Unfinished, create};
use crate::record_shards::ShardWriter;
use crate::tf_example::{Flaw, flaw};
use crate::{DataError, Purpose, Split, hex, parallel};

/// Files of a split, at most: all of them are open while they are read, and systems limit that.
const MOST_PARTS: usize = 256;

/// Instances of other programs, and where to bring them.
///
/// They are read from the HDF5 files of NVIDIA's scripts for PyTorch, from the Parquet files of LDDL, and from TFRecord files, which may be
/// compressed with gzip.
#[derive(Debug, Clone)]
pub struct Import {
    /// Files, and folders of files, to train on.
    pub inputs: Vec<PathBuf>,
    /// Those to evaluate on; none make no such split.
    pub val: Vec<PathBuf>,
    /// `vocab.txt` that the instances were made with.
    pub vocabulary: PathBuf,
    /// The folder to make.
    pub out: PathBuf,
    /// Tokens of a sequence, special ones included; by default those of the first file, or 128 where it does not say how many.
    pub sequence_length: Option<usize>,
    /// Most tokens of a sequence to predict; by default those of the first file, or 20 where it does not say how many.
    pub predictions: Option<usize>,
    /// How tokens are masked of pairs of segments without masks, where the default is not good enough: then there must be such pairs.
    pub masking: Option<PairMasking>,
    /// Seed of those masks.
    pub seed: u64,
    /// Threads that read and write.
    pub threads: usize,
}

/// How pairs of segments are masked that have no masks yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairMasking {
    /// Share of the tokens of a sequence to predict.
    pub probability: f64,
    /// Whether all pieces of a word are masked together.
    pub whole_words: bool,
    /// How many times each pair is written, masked differently.
    pub dupe_factor: u32,
}

impl Default for PairMasking {
    fn default() -> Self {
        let InstanceOptions { masked_lm_probability: probability, whole_words, .. } = InstanceOptions::default();
        Self { probability, whole_words, dupe_factor: 1 }
    }
}

impl Import {
    /// Makes the folder; returns what each split holds. Instances keep their order, and are the same for any number of threads.
    ///
    /// What fails or is stopped leaves nothing behind.
    ///
    /// # Errors
    /// Settings out of range; inputs without a file of instances, or with files of both splits; files that are damaged, were made with
    /// another vocabulary, or hold what is longer than asked; masks to draw where there are none to draw; a folder with content; a stop.
    pub fn run(&self, notify: Notify, stop: Stop) -> Result<Vec<(Split, SplitCounts)>, DataError> {
        let vocabulary = Vocabulary::open(&self.vocabulary)?;
        let splits = self.splits()?;
        let limits = self.limits(&splits[0].1[0])?;
        let (shape, masking) = (limits.shape, self.masking.unwrap_or_default());
        let instances = InstanceOptions {
            sequence_length: shape.sequence_length,
            max_predictions: shape.predictions,
            masked_lm_probability: masking.probability,
            whole_words: masking.whole_words,
            ..InstanceOptions::default()
        };
        instances.check()?;
        check_dupe_factor(masking.dupe_factor)?;
        let parts = splits[0].1.len().min(MOST_PARTS);
        let settings = Settings { instances, dupe_factor: masking.dupe_factor, parts, heldout: 0.0, seed: self.seed };
        let mut manifest = Manifest::new(Format::Tfrecord, settings, [0; 32], vocabulary.hash());
        manifest.origin = Origin::Instances;

        let unfinished = Unfinished::in_empty(&self.out)?;
        write_vocabulary(&self.out, &vocabulary)?;
        let work = Work { import: self, limits, instances, masking, ids: Ids::of(&vocabulary), notify, stop };
        let mut hasher = Sha256::new();
        let mut first = 0;
        let mut pairs = 0;
        let mut written = Vec::new();
        for (split, files) in &splits {
            let split_work = work.write(*split, files, first, parts)?;
            split_work.iter().for_each(|part| hasher.update(part.hash));
            if split_work.iter().all(|part| part.instances == 0) {
                return Err(DataError::layout(
                    files[0].path(),
                    "no instance in it, nor in any other file",
                    "at least one",
                ));
            }
            pairs += split_work.iter().map(|part| part.pairs).sum::<u64>();
            written.push((*split, split_work.iter().map(|part| part.tokens).sum()));
            first += files.len();
        }
        if self.masking.is_some() && pairs == 0 {
            let problem = "all instances have masks already, so that none can be drawn as asked for";
            return Err(DataError::layout(splits[0].1[0].path(), problem, "pairs of segments without masks"));
        }
        manifest.text = hex(&hasher.finalize());
        for (split, tokens) in written {
            work.go_on()?;
            let texts = SplitCounts { tokens, ..SplitCounts::default() };
            let counts = count::<InstanceOptions>(&self.out, &manifest, split, self.threads, texts)?;
            manifest.splits.insert(split, counts);
        }
        work.go_on()?;
        manifest.write(&self.out)?;
        unfinished.keep();
        Ok(manifest.splits.into_iter().collect())
    }

    fn splits(&self) -> Result<Vec<(Split, Vec<SourceFile>)>, DataError> {
        let mut splits = vec![(Split::Train, file::find(&self.inputs)?)];
        if !self.val.is_empty() {
            splits.push((Split::Val, file::find(&self.val)?));
        }
        Ok(splits)
    }

    /// The lengths to write, given or found.
    fn limits(&self, first: &SourceFile) -> Result<Limits, DataError> {
        let found = match (self.sequence_length, self.predictions) {
            (Some(sequence_length), Some(predictions)) => {
                let shape = ExampleShape { sequence_length, predictions };
                return Ok(Limits { shape, origin: "as asked for" });
            }
            _ => first.shape()?,
        };
        let Some(found) = found else {
            let given = self.sequence_length.map(|length| ("sequence length", length));
            if let Some((name, value)) = given.or(self.predictions.map(|predictions| ("predictions", predictions))) {
                let expected =
                    "both lengths, as the files do not say any: 20 predictions for 128 tokens and 80 for 512 are usual";
                return Err(DataError::option(name, value, expected));
            }
            let InstanceOptions { sequence_length, max_predictions: predictions, .. } = InstanceOptions::default();
            return Ok(Limits {
                shape: ExampleShape { sequence_length, predictions },
                origin: "as usual; ask for more",
            });
        };
        let shape = ExampleShape {
            sequence_length: self.sequence_length.unwrap_or(found.sequence_length),
            predictions: self.predictions.unwrap_or(found.predictions),
        };
        Ok(Limits { shape, origin: "as asked for, or as in the first file" })
    }
}

/// The lengths to write.
struct Limits {
    shape: ExampleShape,
    /// Why it is these, in words.
    origin: &'static str,
}

/// The tokens of a vocabulary, and their ids by name.
struct Ids<'a> {
    vocabulary: &'a Vocabulary,
    by_name: HashMap<&'a str, u32>,
}

impl<'a> Ids<'a> {
    fn of(vocabulary: &'a Vocabulary) -> Self {
        Self { vocabulary, by_name: vocabulary.tokens().iter().map(String::as_str).zip(0..).collect() }
    }

    /// Ids of tokens with blanks between them.
    fn of_words(&self, words: &str) -> Result<Vec<u32>, Flaw> {
        let id = |word| {
            let id = self.by_name.get(word).copied();
            id.ok_or_else(|| flaw(format!("the token `{word}` is not in the vocabulary"), OF_VOCABULARY))
        };
        words.split_whitespace().map(id).collect()
    }
}

const OF_VOCABULARY: &str = "instances that were made with this vocabulary";

struct Work<'a> {
    import: &'a Import,
    limits: Limits,
    instances: InstanceOptions,
    masking: PairMasking,
    ids: Ids<'a>,
    notify: Notify<'a>,
    stop: Stop<'a>,
}

/// What was read and written of a split, by one part.
struct Part {
    /// SHA-256 of the files it was made of.
    hash: [u8; 32],
    instances: u64,
    /// Pairs without masks that were read.
    pairs: u64,
    /// Without special ones.
    tokens: u64,
}

impl Work<'_> {
    /// Writes the instances of a split's files to `parts` files: those of file `i` to part `i` modulo `parts`. `first` is the number of its
    /// first file among the files of all splits.
    fn write(&self, split: Split, files: &[SourceFile], first: usize, parts: usize) -> Result<Vec<Part>, DataError> {
        let folder = self.import.out.join(split.name());
        create(&folder)?;
        let names = part_names(&folder, Format::Tfrecord, parts);
        let done = AtomicUsize::new(0);
        parallel::try_map(parts, self.import.threads, |part| {
            let mut shard = ShardWriter::create(names[part].clone())?;
            let mut hasher = Sha256::new();
            let mut written = Part { hash: [0; 32], instances: 0, pairs: 0, tokens: 0 };
            for number in (part..files.len()).step_by(parts) {
                hash_file(files[number].path(), &mut hasher)?;
                self.write_file(&files[number], (first + number) as u64, &mut shard, &mut written)?;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                (self.notify)(Progress { what: split.name(), done, all: files.len() });
            }
            shard.finish()?;
            Ok(Part { hash: hasher.finalize().into(), ..written })
        })
    }

    /// Errors: a stop that was asked for.
    fn go_on(&self) -> Result<(), DataError> {
        if (self.stop)() { Err(DataError::Stopped { path: self.import.out.clone() }) } else { Ok(()) }
    }

    /// Writes the instances of a file and adds them to what was `written`.
    fn write_file(
        &self,
        file: &SourceFile,
        number: u64,
        shard: &mut ShardWriter,
        written: &mut Part,
    ) -> Result<(), DataError> {
        let specials = self.ids.vocabulary.specials();
        let mut places = 0;
        file.each(&self.ids, &mut |place, found| {
            self.go_on()?;
            written.pairs += u64::from(matches!(found, Found::Pair { .. }));
            // No file has 2^40 instances.
            let stream = number << 40 | places;
            places += 1;
            for instance in self.masked(found, stream) {
                let checked = self.check(&instance);
                checked.map_err(|flaw| flaw.at(file.path(), place))?;
                shard.add(&instance.encode(self.limits.shape))?;
                written.instances += 1;
                let words = instance.original_tokens().into_iter().filter(|&id| !specials.is_structure(id));
                written.tokens += words.count() as u64;
            }
            Ok(())
        })
    }

    /// Instances of what is in one place of a file. Masks that are missing are drawn from `stream`.
    fn masked(&self, found: Found, stream: u64) -> Vec<Instance> {
        let (sequence, random_next) = match found {
            Found::Instance(instance) => return vec![instance],
            Found::Pair { sequence, random_next } => (sequence, random_next),
        };
        let draw = |dupe| {
            let mut rng = Purpose::Masks.stream(self.import.seed, dupe, stream);
            let (mut tokens, segments) = (sequence.tokens.clone(), sequence.segments.clone());
            let masked = self.instances.masking().apply(&mut tokens, self.ids.vocabulary, &mut rng);
            Instance { tokens, segments, masked, random_next }
        };
        (0..self.masking.dupe_factor).map(draw).collect()
    }

    /// Errors: more than fits; tokens that are no sequence in this vocabulary.
    fn check(&self, instance: &Instance) -> Result<(), Flaw> {
        let Limits { shape: ExampleShape { sequence_length, predictions }, origin } = self.limits;
        let (length, masked) = (instance.tokens.len(), instance.masked.len());
        if length > sequence_length {
            let problem = format!("a sequence of {length} tokens");
            return Err(flaw(problem, format!("at most {sequence_length}, {origin}")));
        }
        if masked > predictions {
            return Err(flaw(format!("{masked} tokens to predict"), format!("at most {predictions}, {origin}")));
        }
        let (vocabulary, specials) = (self.ids.vocabulary, self.ids.vocabulary.specials());
        let tokens = instance.original_tokens();
        for (place, found, wanted) in [("begins", tokens.first(), specials.cls), ("ends", tokens.last(), specials.sep)]
        {
            if found != Some(&wanted) {
                let found = found.map_or("nothing", |&id| vocabulary.token(id));
                let problem = format!("the sequence {place} with `{found}` instead of {}", vocabulary.token(wanted));
                return Err(flaw(problem, OF_VOCABULARY));
            }
        }
        Ok(())
    }
}
