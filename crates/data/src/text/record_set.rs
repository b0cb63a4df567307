use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::maker::{ExampleShape, Record};
use crate::tf_example::Flaw;
use crate::tfrecord::RecordFile;
use crate::{DataError, parallel};

/// Sequences made once, in TFRecord files.
#[derive(Debug)]
pub(crate) struct RecordSet<R> {
    files: Vec<RecordFile>,
    /// Number of the first record of each file.
    first_records: Vec<usize>,
    records: usize,
    shape: ExampleShape,
    vocabulary_size: usize,
    kind: PhantomData<R>,
}

impl<R: Record> RecordSet<R> {
    /// Finds the records of all files. The first one decides the lengths of all.
    ///
    /// Errors: a damaged file; no record at all; a first record of another kind.
    pub(super) fn open(files: &[PathBuf], vocabulary_size: usize) -> Result<Self, DataError> {
        let opened: Result<Vec<_>, _> = files.iter().map(|path| RecordFile::open(path)).collect();
        let files = opened?;
        let Some(first) = files.iter().find(|file| !file.is_empty()) else {
            let path = files.first().map_or(Path::new("."), RecordFile::path);
            return Err(DataError::layout(path, "no record in any file", format!("TFRecords with {}", R::EXPECTED)));
        };
        let shape = R::shape(&first.read(0)?).map_err(|flaw| error(first, 0, flaw))?;
        let mut records = 0;
        let first_records = files.iter().map(|file| {
            records += file.len();
            records - file.len()
        });
        let first_records = first_records.collect();
        Ok(Self { files, first_records, records, shape, vocabulary_size, kind: PhantomData })
    }

    pub(super) fn len(&self) -> usize {
        self.records
    }

    pub(super) fn shape(&self) -> ExampleShape {
        self.shape
    }

    pub(super) fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// SHA-256 of lengths and checksums of all records.
    pub(super) fn hash(&self) -> [u8; 32] {
        self.files.iter().fold(Sha256::new(), |hasher, file| hasher.chain_update(file.hash())).finalize().into()
    }

    /// Errors: a record that is damaged, or does not hold what it should with these lengths and this vocabulary.
    pub(super) fn record(&self, index: usize) -> Result<R, DataError> {
        let file = self.first_records.partition_point(|&first| first <= index) - 1;
        let record = index - self.first_records[file];
        read(&self.files[file], record, self.shape, self.vocabulary_size)
    }

    /// How often each id of the vocabulary is to be predicted, or may be. Damaged records are left out: whoever asks for one is
    /// reported.
    ///
    /// Errors: a file that cannot be read.
    pub(super) fn word_counts(&self, threads: usize) -> Result<Vec<u64>, DataError> {
        let counts = parallel::try_map(self.files.len(), threads, |index| {
            let mut counts = vec![0_u64; self.vocabulary_size];
            let file = &self.files[index];
            for record in 0..file.len() {
                match read::<R>(file, record, self.shape, self.vocabulary_size) {
                    Ok(record) => record.words().for_each(|id| counts[id as usize] += 1),
                    Err(DataError::Content { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(counts)
        })?;
        Ok((0..self.vocabulary_size).map(|id| counts.iter().map(|counts| counts[id]).sum()).collect())
    }
}

/// Record `index` of a file.
///
/// Errors: a record that is damaged, or does not hold what it should with these lengths and this vocabulary.
pub(crate) fn read<R: Record>(
    file: &RecordFile,
    index: usize,
    shape: ExampleShape,
    vocabulary_size: usize,
) -> Result<R, DataError> {
    R::decode(&file.read(index)?, shape, vocabulary_size).map_err(|flaw| error(file, index, flaw))
}

fn error(file: &RecordFile, index: usize, flaw: Flaw) -> DataError {
    flaw.at(file.path(), file.place(index))
}
