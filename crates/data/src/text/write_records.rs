use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Vocabulary;
use super::folder::Settings;
use super::maker::{Maker, Record};
use super::prepare::{Notify, Progress};
use super::shard::complete;
use super::store::TokenStore;
use crate::tfrecord::{RecordFile, frame};
use crate::{DataError, NewFile, Purpose, parallel};

/// Makes sequences of all documents, as often as the dupe factor says, and writes them in random order, round robin, to
/// TFRecord files. Files that are whole are left as they are. Before each record `go_on` is asked.
pub(crate) fn write_records<M: Maker>(
    maker: M,
    store: &TokenStore,
    vocabulary: &Vocabulary,
    settings: &Settings,
    files: &[PathBuf],
    threads: usize,
    notify: Notify,
    go_on: &(dyn Fn() -> Result<(), DataError> + Sync),
) -> Result<(), DataError> {
    let plans = all_plans(maker, store, settings, threads);
    let done = AtomicUsize::new(0);
    parallel::try_map(files.len(), threads, |number| {
        let share = (number..plans.len()).step_by(files.len());
        if !is_whole(&files[number], share.len()) {
            let payload = |index: usize| {
                go_on()?;
                let mut rng = Purpose::Masks.stream(settings.seed, 0, index as u64);
                Ok(maker.make(store, &plans[index], vocabulary, &mut rng)?.encode(maker.shape()))
            };
            write_file(&files[number], share.map(payload))?;
        }
        notify(Progress { what: "TFRecord files", done: done.fetch_add(1, Ordering::Relaxed) + 1, all: files.len() });
        Ok(())
    })?;
    Ok(())
}

/// Every document cut into sequences once for each of the dupe factor, in random order.
fn all_plans<M: Maker>(maker: M, store: &TokenStore, settings: &Settings, threads: usize) -> Vec<M::Plan> {
    let cut = |dupe: usize| {
        let mut plans = Vec::new();
        for document in 0..store.documents() {
            let mut rng = Purpose::Pairs.stream(settings.seed, dupe as u32, document.into());
            maker.cut(store, document, &mut rng, |_, plan| plans.push(plan));
        }
        plans
    };
    let dupes = parallel::map_with(settings.dupe_factor as usize, threads, || (), |(), dupe| cut(dupe));
    let mut plans: Vec<M::Plan> = dupes.into_iter().flatten().collect();
    Purpose::Shuffle.stream(settings.seed, 0, 0).shuffle(&mut plans);
    plans
}

fn is_whole(path: &Path, records: usize) -> bool {
    let whole = |file: RecordFile| file.len() == records && (0..records).all(|index| file.read(index).is_ok());
    RecordFile::open(path).is_ok_and(whole)
}

fn write_file(path: &Path, payloads: impl Iterator<Item = Result<Vec<u8>, DataError>>) -> Result<(), DataError> {
    let partial = path.with_extension("partial");
    let mut file = NewFile::create(path, &partial).map_err(DataError::writing(&partial, "create the file"))?;
    for payload in payloads {
        file.write_all(&frame(&payload?)).map_err(DataError::writing(&partial, "write the file"))?;
    }
    complete(file, path)
}
