//! From text files to a data set.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use super::corpus::{Corpus, Documents};
use super::folder::{Format, Manifest, Settings, SplitCounts, part_names, write_vocabulary};
use super::maker::Maker;
use super::shard::{Shard, ShardWriter};
use super::source::{Source, require_documents};
use super::store::TokenStore;
use super::write_records::write_records;
use super::{ElectraOptions, InstanceOptions, TextTokenizer, Vocabulary, sentences};
use crate::new_folder::{Unfinished, create, require_empty};
use crate::{DataError, Split, parallel};

/// Text of a part, where the number of parts is not given.
const PART_BYTES: u64 = 64 << 20;
/// At least this many parts are made, if there are as many files, so that several threads have work.
const LEAST_PARTS: u64 = 8;
const MOST_PARTS: usize = 99_999;

/// What to make a data set of, and how.
#[derive(Debug, Clone)]
pub struct Preparation {
    /// Files and folders of text.
    pub inputs: Vec<PathBuf>,
    /// How the files are cut into documents.
    pub documents: Documents,
    /// `vocab.txt`.
    pub vocabulary: PathBuf,
    /// The folder to make.
    pub out: PathBuf,
    /// Format of the shards.
    pub format: Format,
    /// How instances are made; of records for ELECTRA, their length and the share of short ones.
    pub instances: InstanceOptions,
    /// How many times TFRecord files hold each document, cut (and, for BERT, masked) differently.
    pub dupe_factor: u32,
    /// Files of each split; by default, as many as the text is long.
    pub parts: Option<usize>,
    /// Share of the documents to hold out.
    pub heldout: f64,
    /// Seed of every random choice.
    pub seed: u64,
    /// Threads that tokenise and write.
    pub threads: usize,
}

/// What is being done: `done` of `all` pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, in a word or two.
    pub what: &'static str,
    /// How many are done.
    pub done: usize,
    /// How many there are.
    pub all: usize,
}

/// Called with the progress, from any thread.
pub type Notify<'a> = &'a (dyn Fn(Progress) + Sync);

/// Whether a stop was asked for; called from any thread.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// Makes a data set; returns what each split holds.
///
/// What it holds does not depend on the number of threads. One that fails, or that is stopped as `stop` says, leaves nothing
/// behind; one that was killed goes on with the parts that are missing, and one that was completed is checked and left as it is.
///
/// Errors: settings out of range; no documents; files that cannot be read or written; a folder with other content; a stop.
pub fn prepare(preparation: &Preparation, notify: Notify, stop: Stop) -> Result<Vec<(Split, SplitCounts)>, DataError> {
    match preparation.format {
        Format::Shards | Format::Tfrecord => prepare_for::<InstanceOptions>(preparation, notify, stop),
        Format::ElectraTfrecord => prepare_for::<ElectraOptions>(preparation, notify, stop),
    }
}

fn prepare_for<M: Maker>(
    preparation: &Preparation,
    notify: Notify,
    stop: Stop,
) -> Result<Vec<(Split, SplitCounts)>, DataError> {
    let maker = M::prepared(preparation.format, &preparation.instances);
    maker.check()?;
    check(preparation)?;
    let vocabulary = Arc::new(Vocabulary::open(&preparation.vocabulary)?);
    let corpus = Corpus::open(&preparation.inputs, preparation.documents)?;
    let manifest = plan(preparation, &corpus, &vocabulary)?;
    let work = Work { preparation, maker, manifest, vocabulary, corpus, notify, stop };
    let found = work.look_at_folder()?;
    if let Some(found) = found.as_ref().filter(|found| work.is_whole(found)) {
        return Ok(found.splits.clone().into_iter().collect());
    }
    let unfinished = Unfinished::begin(&preparation.out);
    let result = work.fill();
    // Damage of what was complete before is no reason to remove the rest.
    if result.is_ok() || found.is_some_and(|found| !found.splits.is_empty()) {
        unfinished.keep();
    }
    result
}

pub(super) fn check_dupe_factor(dupe_factor: u32) -> Result<(), DataError> {
    match (1..=10_000).contains(&dupe_factor) {
        true => Ok(()),
        false => Err(DataError::option("dupe factor", dupe_factor, "1 to 10000")),
    }
}

fn check(preparation: &Preparation) -> Result<(), DataError> {
    let Preparation { dupe_factor, parts, heldout, .. } = *preparation;
    check_dupe_factor(dupe_factor)?;
    if !(0.0..1.0).contains(&heldout) {
        return Err(DataError::option("held-out share", heldout, "0 to less than 1"));
    }
    match parts.filter(|parts| !(1..=MOST_PARTS).contains(parts)) {
        Some(parts) => Err(DataError::option("shards", parts, format!("1 to {MOST_PARTS}"))),
        None => Ok(()),
    }
}

fn plan(preparation: &Preparation, corpus: &Corpus, vocabulary: &Vocabulary) -> Result<Manifest, DataError> {
    let by_size = corpus.bytes().div_ceil(PART_BYTES).max(LEAST_PARTS.min(corpus.files() as u64));
    let parts = preparation.parts.unwrap_or((by_size as usize).min(MOST_PARTS));
    let Preparation { instances, dupe_factor, heldout, seed, format, .. } = *preparation;
    let settings = Settings { instances, dupe_factor, parts, heldout, seed };
    Ok(Manifest::new(format, settings, corpus.hash()?, vocabulary.hash()))
}

struct Work<'a, M> {
    preparation: &'a Preparation,
    maker: M,
    manifest: Manifest,
    vocabulary: Arc<Vocabulary>,
    corpus: Corpus,
    notify: Notify<'a>,
    stop: Stop<'a>,
}

impl<M: Maker> Work<'_, M> {
    fn out(&self) -> &Path {
        &self.preparation.out
    }

    fn splits(&self) -> &'static [Split] {
        if self.preparation.heldout > 0.0 { &[Split::Train, Split::Val] } else { &[Split::Train] }
    }

    /// Where the shards of a split are written: beside the records that are made of them, if these are asked for.
    fn shard_folder(&self, split: Split) -> PathBuf {
        match self.preparation.format {
            Format::Shards => self.out().join(split.name()),
            Format::Tfrecord | Format::ElectraTfrecord => self.token_folder().join(split.name()),
        }
    }

    fn token_folder(&self) -> PathBuf {
        self.out().join("tokens")
    }

    /// Shards of a split, in order.
    fn shard_files(&self, split: Split) -> Vec<PathBuf> {
        part_names(&self.shard_folder(split), Format::Shards, self.manifest.options.parts)
    }

    /// The manifest of a folder that was begun before with the same plan.
    ///
    /// Errors: a folder with other content.
    fn look_at_folder(&self) -> Result<Option<Manifest>, DataError> {
        let out = self.out();
        match Manifest::find(out)? {
            Some(found) if !found.is_same_plan(&self.manifest) => {
                let problem = "the folder holds a data set of other text, vocabulary or settings";
                Err(DataError::layout(out, problem, "a new or empty folder"))
            }
            Some(found) => Ok(Some(found)),
            None if out.exists() => require_empty(out).map(|()| None),
            None => Ok(None),
        }
    }

    /// Begins the folder, or takes up what lies there, and completes it.
    fn fill(self) -> Result<Vec<(Split, SplitCounts)>, DataError> {
        let out = self.out();
        create(out)?;
        self.manifest.write(out)?;
        write_vocabulary(out, &self.vocabulary)?;
        self.write_shards()?;
        if self.preparation.format != Format::Shards {
            self.write_records()?;
        }
        self.complete()
    }

    /// Errors: a stop that was asked for.
    fn go_on(&self) -> Result<(), DataError> {
        if (self.stop)() { Err(DataError::Stopped { path: self.out().to_owned() }) } else { Ok(()) }
    }

    /// Whether what lies in a folder was completed, and counts as its manifest says.
    fn is_whole(&self, found: &Manifest) -> bool {
        let is_complete = !found.splits.is_empty();
        is_complete
            && found.splits.iter().all(|(&split, counts)| self.count(split, *counts).is_ok_and(|now| now == *counts))
    }

    fn write_shards(&self) -> Result<(), DataError> {
        for &split in self.splits() {
            create(&self.shard_folder(split))?;
        }
        let parts = self.manifest.options.parts;
        let tokenizer = TextTokenizer::new(Arc::clone(&self.vocabulary));
        let done = AtomicUsize::new(0);
        parallel::try_map(parts, self.preparation.threads, |index| {
            let files: Vec<PathBuf> =
                self.splits().iter().map(|&split| self.shard_files(split).swap_remove(index)).collect();
            if !files.iter().all(|file| self.is_whole_shard(file)) {
                self.write_part(index, &files, &tokenizer)?;
            }
            (self.notify)(Progress { what: "shards", done: done.fetch_add(1, Ordering::Relaxed) + 1, all: parts });
            Ok(())
        })?;
        Ok(())
    }

    fn is_whole_shard(&self, file: &Path) -> bool {
        let opened = Shard::open(file, self.vocabulary.hash());
        opened.and_then(|shard| shard.scan(self.vocabulary.len(), &mut |_| ())).is_ok()
    }

    /// Writes part `index` of the text: a file for each split.
    fn write_part(&self, index: usize, files: &[PathBuf], tokenizer: &TextTokenizer) -> Result<(), DataError> {
        let create = |file: &PathBuf| ShardWriter::create(file, self.vocabulary.len(), self.vocabulary.hash());
        let mut writers = files.iter().map(create).collect::<Result<Vec<_>, _>>()?;
        self.corpus.each_document(index, self.manifest.options.parts, &mut |lines| {
            self.go_on()?;
            let cut = lines.iter().flat_map(|line| sentences(line));
            let ids: Vec<Vec<u32>> = cut.map(|sentence| tokenizer.ids(sentence)).collect();
            let split = usize::from(is_held_out(lines, self.preparation.heldout));
            writers[split].add(&ids)
        })?;
        writers.into_iter().try_for_each(ShardWriter::finish)
    }

    fn write_records(&self) -> Result<(), DataError> {
        for &split in self.splits() {
            let store = self.store(split)?;
            let folder = self.out().join(split.name());
            create(&folder)?;
            let files = part_names(&folder, M::RECORDS, self.manifest.options.parts);
            let (settings, threads) = (&self.manifest.options, self.preparation.threads);
            let go_on = || self.go_on();
            write_records(self.maker, &store, &self.vocabulary, settings, &files, threads, self.notify, &go_on)?;
        }
        Ok(())
    }

    fn store(&self, split: Split) -> Result<TokenStore, DataError> {
        let store = TokenStore::open(&self.shard_files(split), self.vocabulary.hash())?;
        require_documents::<M>(&store, &self.out().join(split.name()))?;
        Ok(store)
    }

    /// Counts what was written, reading it back, and says in the manifest that it is whole.
    fn complete(mut self) -> Result<Vec<(Split, SplitCounts)>, DataError> {
        for &split in self.splits() {
            self.go_on()?;
            let store = self.store(split)?;
            let (sentences, tokens) = store.sentences_and_tokens();
            let (documents, sentences) = (Some(store.documents().into()), Some(sentences));
            let texts = SplitCounts { documents, sentences, tokens, ..SplitCounts::default() };
            let counts = self.count(split, texts)?;
            self.manifest.splits.insert(split, counts);
        }
        if self.preparation.format != Format::Shards {
            let tokens = self.token_folder();
            fs::remove_dir_all(&tokens).map_err(DataError::writing(&tokens, "remove the folder"))?;
        }
        self.manifest.write(self.out())?;
        Ok(self.manifest.splits.into_iter().collect())
    }

    fn count(&self, split: Split, texts: SplitCounts) -> Result<SplitCounts, DataError> {
        count::<M>(self.out(), &self.manifest, split, self.preparation.threads, texts)
    }
}

/// Counts of a split that was written, but for those of its text, which are given.
pub(super) fn count<M: Maker>(
    out: &Path,
    manifest: &Manifest,
    split: Split,
    threads: usize,
    texts: SplitCounts,
) -> Result<SplitCounts, DataError> {
    let set = Source::<M>::prepared(out, manifest, split, None, manifest.options.seed)?;
    let files = manifest.part_files(out, split)?;
    let size =
        |file: &PathBuf| fs::metadata(file).map(|found| found.len()).map_err(DataError::io(file, "look at the file"));
    let bytes = files.iter().map(size).sum::<Result<u64, _>>()?;
    let unigram_entropy = set.unigram_entropy(threads)?;
    Ok(SplitCounts { instances: set.len() as u64, unigram_entropy, bytes, ..texts })
}

/// Whether a document is of the share to be held out. That depends on what it says alone, so that no document is in
/// both splits and more text does not move it.
fn is_held_out(lines: &[String], share: f64) -> bool {
    let hash = Sha256::digest(lines.join("\n"));
    let number = u64::from_le_bytes(hash[..8].try_into().expect("8 bytes"));
    (number as f64) < share * 2_f64.powi(64)
}
