use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Instance;
use super::example::{self, ExampleShape, Flaw};
use crate::tfrecord::RecordFile;
use crate::{DataError, parallel};

/// Instances made once, in TFRecord files.
#[derive(Debug)]
pub(crate) struct RecordSet {
    files: Vec<RecordFile>,
    /// Number of the first instance of each file.
    first_instances: Vec<usize>,
    instances: usize,
    shape: ExampleShape,
    vocabulary_size: usize,
}

impl RecordSet {
    /// Finds the records of all files. The first one decides the lengths of all.
    ///
    /// Errors: a damaged file; no record at all; a first record that is no instance.
    pub fn open(files: &[PathBuf], vocabulary_size: usize) -> Result<Self, DataError> {
        let opened: Result<Vec<_>, _> = files.iter().map(|path| RecordFile::open(path)).collect();
        let files = opened?;
        let Some(first) = files.iter().find(|file| !file.is_empty()) else {
            let path = files.first().map_or(Path::new("."), RecordFile::path);
            return Err(DataError::layout(path, "no record in any file", "TFRecords of BERT's pre-training"));
        };
        let shape = example::shape(&first.read(0)?).map_err(|flaw| error(first, 0, flaw))?;
        let mut instances = 0;
        let first_instances = files.iter().map(|file| {
            instances += file.len();
            instances - file.len()
        });
        let first_instances = first_instances.collect();
        Ok(Self { files, first_instances, instances, shape, vocabulary_size })
    }

    pub fn len(&self) -> usize {
        self.instances
    }

    pub fn shape(&self) -> ExampleShape {
        self.shape
    }

    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// SHA-256 of lengths and checksums of all records.
    pub fn hash(&self) -> [u8; 32] {
        self.files.iter().fold(Sha256::new(), |hasher, file| hasher.chain_update(file.hash())).finalize().into()
    }

    /// Errors: a record that is damaged, or that holds no instance of the lengths and the vocabulary.
    pub fn instance(&self, index: usize) -> Result<Instance, DataError> {
        let file = self.first_instances.partition_point(|&first| first <= index) - 1;
        let record = index - self.first_instances[file];
        read(&self.files[file], record, self.shape, self.vocabulary_size)
    }

    /// How often each id of the vocabulary is to be predicted.
    ///
    /// Errors: a damaged record.
    pub fn target_counts(&self, threads: usize) -> Result<Vec<u64>, DataError> {
        let counts = parallel::try_map(self.files.len(), threads, |index| {
            let mut counts = vec![0_u64; self.vocabulary_size];
            let file = &self.files[index];
            for record in 0..file.len() {
                let instance = read(file, record, self.shape, self.vocabulary_size)?;
                instance.masked.iter().for_each(|&(_, id)| counts[id as usize] += 1);
            }
            Ok(counts)
        })?;
        Ok((0..self.vocabulary_size).map(|id| counts.iter().map(|counts| counts[id]).sum()).collect())
    }
}

/// Record `index` of a file.
///
/// Errors: a record that is damaged, or that holds no instance of the lengths and the vocabulary.
pub(crate) fn read(
    file: &RecordFile,
    index: usize,
    shape: ExampleShape,
    vocabulary_size: usize,
) -> Result<Instance, DataError> {
    example::decode(&file.read(index)?, shape, vocabulary_size).map_err(|flaw| error(file, index, flaw))
}

fn error(file: &RecordFile, index: usize, flaw: Flaw) -> DataError {
    DataError::content(file.path(), file.place(index), flaw.problem, flaw.expected)
}
