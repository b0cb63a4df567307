use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::folder::{Format, Manifest, SplitCounts};
use super::maker::Maker;
use super::prepare::{Notify, Progress};
use super::record_set;
use super::shard::Shard;
use super::source::Source;
use super::{ElectraOptions, InstanceOptions, Vocabulary};
use crate::tfrecord::RecordFile;
use crate::{DataError, Split, parallel};

/// What [`verify`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextReport {
    /// Format of the shards.
    pub format: Format,
    /// What was counted at preparation.
    pub splits: Vec<(Split, SplitCounts)>,
    /// What is wrong, each with its place, by split and file.
    pub problems: Vec<String>,
}

impl TextReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads every part of a prepared data set, checks checksums, lengths and ids, and counts.
///
/// Errors: a folder without a completed data set or without its vocabulary. All else is reported.
pub fn verify(folder: &Path, threads: usize, notify: Notify) -> Result<TextReport, DataError> {
    let manifest = Manifest::open(folder)?;
    match manifest.format {
        Format::Shards | Format::Tfrecord => verify_for::<InstanceOptions>(folder, manifest, threads, notify),
        Format::ElectraTfrecord => verify_for::<ElectraOptions>(folder, manifest, threads, notify),
    }
}

fn verify_for<M: Maker>(
    folder: &Path,
    manifest: Manifest,
    threads: usize,
    notify: Notify,
) -> Result<TextReport, DataError> {
    let vocabulary = manifest.vocabulary(folder)?;
    let mut problems = Vec::new();
    for (&split, counted) in &manifest.splits {
        let before = problems.len();
        match manifest.part_files(folder, split) {
            Ok(files) => {
                let done = AtomicUsize::new(0);
                let found = parallel::map_with(
                    files.len(),
                    threads,
                    || (),
                    |(), index| {
                        let found = check_file::<M>(&files[index], &manifest, &vocabulary);
                        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                        notify(Progress { what: split.name(), done, all: files.len() });
                        found
                    },
                );
                problems.extend(found.into_iter().flatten().map(|error| error.to_string()));
            }
            Err(error) => problems.push(error.to_string()),
        }
        if problems.len() == before {
            problems.extend(check_count::<M>(folder, &manifest, split, counted));
        }
    }
    Ok(TextReport { format: manifest.format, splits: manifest.splits.into_iter().collect(), problems })
}

fn check_file<M: Maker>(path: &Path, manifest: &Manifest, vocabulary: &Vocabulary) -> Vec<DataError> {
    match manifest.format {
        Format::Shards => {
            let opened = Shard::open(path, vocabulary.hash());
            opened.and_then(|shard| shard.scan(vocabulary.len(), &mut |_| ())).err().into_iter().collect()
        }
        Format::Tfrecord | Format::ElectraTfrecord => match RecordFile::open(path) {
            Ok(file) => {
                let shape = M::prepared(manifest.format, &manifest.options.instances).shape();
                let check = |index| record_set::read::<M::Made>(&file, index, shape, vocabulary.len()).err();
                (0..file.len()).filter_map(check).collect()
            }
            Err(error) => vec![error],
        },
    }
}

/// A file with fewer records than were written is whole by itself.
fn check_count<M: Maker>(folder: &Path, manifest: &Manifest, split: Split, counted: &SplitCounts) -> Option<String> {
    let set = Source::<M>::prepared(folder, manifest, split, None, manifest.options.seed);
    match set {
        Ok(set) if set.len() as u64 == counted.instances => None,
        Ok(set) => {
            let (found, expected) = (set.len(), counted.instances);
            let place = folder.join(split.name());
            Some(
                DataError::layout(&place, format!("{found} instances"), format!("{expected}, as were made"))
                    .to_string(),
            )
        }
        Err(error) => Some(error.to_string()),
    }
}
