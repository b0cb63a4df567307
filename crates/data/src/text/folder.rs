//! The folder of a prepared data set: `text.json`, `vocab.txt` and the parts of each split.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{InstanceOptions, Vocabulary};
use crate::{DataError, NewFile, Split, hex};

/// Name of the vocabulary's file in the folder of a prepared data set.
pub const VOCABULARY_FILE: &str = "vocab.txt";
const MANIFEST_FILE: &str = "text.json";
const VERSION: u32 = 1;
const EXPECTED: &str = "a folder that `bessemer data prepare text` or `instances` has made";

/// In what form a data set is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Token shards: instances are made on the fly, with new pairs and masks in each epoch.
    #[default]
    Shards,
    /// TFRecord files of instances for BERT, made once.
    Tfrecord,
    /// TFRecord files of sequences for ELECTRA, made once; masks are drawn when they are read.
    ElectraTfrecord,
}

impl Format {
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Shards => "tokens",
            Self::Tfrecord | Self::ElectraTfrecord => "tfrecord",
        }
    }

    /// What a folder holds.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Shards => "token shards",
            Self::Tfrecord => "records for BERT, in which words are masked already",
            Self::ElectraTfrecord => "records for ELECTRA",
        }
    }

    /// That of a folder that [`prepare`](super::prepare) made.
    ///
    /// Errors: no such folder; a preparation that was not completed.
    pub fn of(folder: &Path) -> Result<Self, DataError> {
        Ok(Manifest::open(folder)?.format)
    }
}

/// What decides the content of a prepared data set, apart from text and vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How documents are cut into sequences.
    pub instances: InstanceOptions,
    /// How many times TFRecord files hold each document, cut (and, for BERT, masked) differently.
    pub dupe_factor: u32,
    /// Files of each split.
    pub parts: usize,
    /// Share of the documents to hold out, chosen by what they say.
    pub heldout: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What a split of a data set holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitCounts {
    /// Documents read; not known of instances that another program made.
    pub documents: Option<u64>,
    /// Sentences in them; not known of instances that another program made.
    pub sentences: Option<u64>,
    /// Tokens of documents, or of such instances, without special ones.
    pub tokens: u64,
    /// Instances, of one epoch for shards.
    pub instances: u64,
    /// See [`PretrainingSet::unigram_entropy`](super::PretrainingSet::unigram_entropy).
    pub unigram_entropy: f64,
    /// Size of the files.
    pub bytes: u64,
}

/// What a data set was made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    #[default]
    Text,
    /// Instances of another program: their lengths and parts are those of the settings, and so are masks that they did not have.
    Instances,
}

/// What `text.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub version: u32,
    pub format: Format,
    #[serde(default)]
    pub origin: Origin,
    pub options: Settings,
    /// SHA-256 of the text, or of the files of instances.
    pub text: String,
    /// SHA-256 of the vocabulary.
    pub vocabulary: String,
    /// Empty until all parts are written.
    pub splits: BTreeMap<Split, SplitCounts>,
}

impl Manifest {
    pub(super) fn new(format: Format, options: Settings, text: [u8; 32], vocabulary: [u8; 32]) -> Self {
        let (text, vocabulary) = (hex(&text), hex(&vocabulary));
        let origin = Origin::Text;
        Self { version: VERSION, format, origin, options, text, vocabulary, splits: BTreeMap::new() }
    }

    /// Reads the manifest of a folder, complete or not; `None` if there is none.
    pub(super) fn find(folder: &Path) -> Result<Option<Self>, DataError> {
        let path = folder.join(MANIFEST_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DataError::io(&path, "read the file")(error)),
        };
        let manifest: Self =
            serde_json::from_str(&text).map_err(|error| DataError::layout(&path, error.to_string(), EXPECTED))?;
        match manifest.version {
            VERSION => Ok(Some(manifest)),
            version => Err(DataError::layout(&path, format!("of version {version}"), format!("version {VERSION}"))),
        }
    }

    /// Reads the manifest of a folder whose preparation was completed.
    pub(super) fn open(folder: &Path) -> Result<Self, DataError> {
        let manifest = Self::find(folder)?;
        let manifest =
            manifest.ok_or_else(|| DataError::layout(folder, format!("no {MANIFEST_FILE} in it"), EXPECTED))?;
        match manifest.splits.is_empty() {
            false => Ok(manifest),
            true => {
                let expected = "the command that prepares it to be run again, which goes on where it ended";
                Err(DataError::layout(folder, "the preparation was not completed", expected))
            }
        }
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), DataError> {
        let text = serde_json::to_string_pretty(self).expect("keys are names") + "\n";
        write_whole(&folder.join(MANIFEST_FILE), text.as_bytes())
    }

    /// Whether both come of the same text, vocabulary and settings.
    pub(super) fn is_same_plan(&self, other: &Self) -> bool {
        *self == Self { splits: self.splits.clone(), ..other.clone() }
    }

    /// The vocabulary beside the manifest.
    pub(super) fn vocabulary(&self, folder: &Path) -> Result<Vocabulary, DataError> {
        let path = folder.join(VOCABULARY_FILE);
        let vocabulary = Vocabulary::open(&path)?;
        match hex(&vocabulary.hash()) == self.vocabulary {
            true => Ok(vocabulary),
            false => Err(DataError::layout(&path, "not the vocabulary that the set was made with", "it unchanged")),
        }
    }

    /// Files of a split, in order. The folder of the split must be there.
    pub(super) fn part_files(&self, folder: &Path, split: Split) -> Result<Vec<PathBuf>, DataError> {
        let place = folder.join(split.name());
        if !place.is_dir() {
            let expected = "a data set prepared with documents held out, for val";
            return Err(DataError::layout(&place, "no such folder", expected));
        }
        Ok(part_names(&place, self.format, self.options.parts))
    }
}

/// What is random about a split is drawn with the run's `seed` to train on, and with that of the preparation to evaluate
/// on, so that all runs see the same.
pub(crate) fn drawn_with(manifest: &Manifest, split: Split, seed: u64) -> u64 {
    if split == Split::Train { seed } else { manifest.options.seed }
}

/// Paths of all parts in a folder.
pub(crate) fn part_names(folder: &Path, format: Format, parts: usize) -> Vec<PathBuf> {
    (0..parts).map(|index| folder.join(format!("part-{index:05}-of-{parts:05}.{}", format.extension()))).collect()
}

/// Files of a folder whose names contain `tfrecord`, in the order of their names.
pub(crate) fn record_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries = fs::read_dir(folder).map_err(DataError::io(folder, "list the folder"))?;
    let names: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names = names.map_err(DataError::io(folder, "list the folder"))?;
    names.retain(|name| name.to_string_lossy().contains("tfrecord"));
    names.sort_unstable();
    match names.is_empty() {
        false => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
        true => Err(DataError::layout(folder, "no file in it whose name contains `tfrecord`", "TFRecord files")),
    }
}

/// Writes a vocabulary to the folder of a data set.
pub(super) fn write_vocabulary(folder: &Path, vocabulary: &Vocabulary) -> Result<(), DataError> {
    write_whole(&folder.join(VOCABULARY_FILE), (vocabulary.tokens().join("\n") + "\n").as_bytes())
}

/// Writes a file beside its place and gives it its name when it is whole.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let partial = path.with_extension("partial");
    let write = || -> io::Result<NewFile> {
        let mut file = NewFile::create(path, &partial)?;
        file.write_all(bytes)?;
        file.flush()?;
        Ok(file)
    };
    let file = write().map_err(DataError::writing(&partial, "write the file"))?;
    file.place().map(drop).map_err(DataError::writing(path, "rename the file to"))
}
