//! Text to pre-train on: prepare, verify, sample, tokenize.

use super::VerifyFolder;
use crate::args::{Common, at_least_one};
use crate::failure::Usage;
use crate::output::{Table, print, print_json};
use anyhow::bail;
use bessemer_bench::show::counted;
use bessemer_data::text::{
    Documents, ElectraInstance, ElectraOptions, ElectraSet, Format, Import, Instance, InstanceOptions, PairMasking,
    Preparation, PretrainingSet, Progress, SplitCounts, TextTokenizer, VOCABULARY_FILE, Vocabulary, prepare, verify,
};
use bessemer_data::{Purpose, Split};
use bessemer_train::StopSignal;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const PREPARE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data prepare text wiki/ --vocab vocab.txt --out wiki-tokens/
  bessemer data prepare text books/ --one-document-a-file --vocab vocab.txt --out book-tokens/
  bessemer data prepare text wiki/ --vocab vocab.txt --out wiki-records/ --format tfrecord --seq-length 512 --max-predictions 80
  bessemer data prepare text wiki/ --vocab vocab.txt --out wiki-electra/ --format tfrecord --for electra";

/// Cut text into documents, sentences and tokens to pre-train BERT or ELECTRA on
///
/// Text is UTF-8: plain, with blank lines between documents, or what WikiExtractor writes. A preparation that fails, or is
/// interrupted (Ctrl-C), leaves nothing behind; after one that was killed the same command goes on where it ended. The seed is
/// 12345 unless `--seed` is given.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_EXAMPLES)]
pub(crate) struct Prepare {
    /// Files, and folders of files
    #[arg(value_name = "IN", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Take each plain file for one document: blank lines separate its paragraphs
    #[arg(long, help_heading = "Text")]
    pub one_document_a_file: bool,
    /// WordPiece vocabulary, one token a line
    #[arg(long, value_name = "FILE", help_heading = "Text")]
    pub vocab: PathBuf,
    /// Share of the documents to evaluate on, as split val
    #[arg(long, value_name = "SHARE", default_value = "0.02", help_heading = "Text")]
    pub heldout: f64,
    /// Folder to write
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: PathBuf,
    /// Token shards, from which instances are made on the fly, or TFRecord files of instances
    #[arg(long, value_enum, default_value_t = Form::Shards, help_heading = "Output")]
    pub format: Form,
    /// Model that TFRecord files are for; token shards serve both
    #[arg(long = "for", value_enum, default_value_t = Goal::Bert, help_heading = "Output")]
    pub goal: Goal,
    /// Files of each split [default: by the size of the text]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true, help_heading = "Output")]
    pub shards: Option<usize>,
    #[command(flatten)]
    pub instances: Instances,
    /// How often TFRecord files hold each document, cut and masked differently [default: 5; for ELECTRA 1]
    #[arg(long, value_name = "N", help_heading = "Instances")]
    pub dupe_factor: Option<u32>,
}

/// How instances are made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instances")]
pub(crate) struct Instances {
    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = InstanceOptions::default().sequence_length)]
    pub seq_length: usize,
    /// Most tokens of a sequence to predict [default: 20]
    #[arg(long, value_name = "N")]
    pub max_predictions: Option<usize>,
    /// Share of the tokens to predict [default: 0.15]
    #[arg(long, value_name = "SHARE")]
    pub masked_lm_prob: Option<f64>,
    /// Share of sequences that aim at a random shorter length [default: 0.1; in records for ELECTRA 0.05]
    #[arg(long, value_name = "SHARE")]
    pub short_seq_prob: Option<f64>,
    /// Mask all pieces of a word together
    #[arg(long)]
    pub whole_word: bool,
}

const PREPARE_INSTANCES_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data prepare instances hdf5/*_training_*.hdf5 --val hdf5/*_test_*.hdf5 --vocab vocab.txt --out wiki-records/
  bessemer data prepare instances lddl/train/ --val lddl/val/ --vocab vocab.txt --out wiki-records/ --seq-length 512 --max-predictions 80
  bessemer data prepare instances tf_examples.tfrecord.gz --vocab vocab.txt --out wiki-records/";

/// Bring instances for BERT that other programs made to TFRecord files, from which training reads
///
/// Read are the HDF5 files of NVIDIA's `create_pretraining_data.py`, the Parquet files of LDDL, binned or not, and TFRecord files,
/// compressed with gzip or not. Of folders, files are taken whose names contain `.hdf5`, `.h5`, `.parquet` or `tfrecord`. Instances keep
/// their order. LDDL's pairs without masks get some; their seed is 12345 unless `--seed` is given. What fails, or is interrupted (Ctrl-C),
/// leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_INSTANCES_EXAMPLES)]
pub(crate) struct PrepareInstances {
    /// Files, and folders of files, to train on
    #[arg(value_name = "IN", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Files, and folders of files, to evaluate on, as split val
    #[arg(long, value_name = "IN", num_args = 1.., help_heading = "Instances")]
    pub val: Vec<PathBuf>,
    /// WordPiece vocabulary that they were made with, one token a line
    #[arg(long, value_name = "FILE", help_heading = "Instances")]
    pub vocab: PathBuf,
    /// Tokens of a sequence [default: those of the first file, or 128 where it does not say]
    #[arg(long, value_name = "N", help_heading = "Instances")]
    pub seq_length: Option<usize>,
    /// Most tokens of a sequence to predict [default: those of the first file, or 20 where it does not say]
    #[arg(long, value_name = "N", help_heading = "Instances")]
    pub max_predictions: Option<usize>,
    /// Share of the tokens to predict [default: 0.15]
    #[arg(long, value_name = "SHARE", help_heading = "Pairs without masks")]
    pub masked_lm_prob: Option<f64>,
    /// Mask all pieces of a word together
    #[arg(long, help_heading = "Pairs without masks")]
    pub whole_word: bool,
    /// How often each pair is written, masked differently [default: 1]
    #[arg(long, value_name = "N", help_heading = "Pairs without masks")]
    pub dupe_factor: Option<u32>,
    /// Folder to write, which must be new or empty
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: PathBuf,
}

/// In what form a data set is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Shards,
    Tfrecord,
}

/// Which model sequences are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Goal {
    Bert,
    Electra,
}

const SAMPLE_EXAMPLES: &str = "\
EXAMPLES:
  bessemer data sample text wiki-tokens/
  bessemer data sample text wiki-tokens/ --split val --number 10
  bessemer data sample text wiki-tokens/ --for electra";

/// Print random instances of a prepared text: hidden tokens are followed by the token to predict
#[derive(Debug, Args)]
#[command(after_help = SAMPLE_EXAMPLES)]
pub(crate) struct Sample {
    /// Folder that `data prepare text` or `data prepare instances` has made
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Half of the data set: train or val
    #[arg(long, default_value = "train", help_heading = "Instances")]
    pub split: Split,
    /// Model to make them for, of token shards [default: bert]
    #[arg(long = "for", value_enum, help_heading = "Instances")]
    pub goal: Option<Goal>,
    /// How many
    #[arg(long, value_name = "N", default_value = "3", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Instances")]
    pub number: usize,
}

const TOKENIZE_EXAMPLES: &str = "\
EXAMPLES:
  echo 'Hello, world' | bessemer data tokenize --vocab vocab.txt
  bessemer data tokenize --vocab vocab.txt < lines.txt
  bessemer data tokenize --vocab vocab.txt --json < lines.txt";

/// Cut each line of standard input into tokens, and print these with their ids
#[derive(Debug, Args)]
#[command(after_help = TOKENIZE_EXAMPLES)]
pub(crate) struct Tokenize {
    /// WordPiece vocabulary, one token a line
    #[arg(long, value_name = "FILE")]
    pub vocab: PathBuf,
    /// Print a JSON object a line: text, tokens, ids
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// Seed of the original `create_pretraining_data.py`.
const DEFAULT_SEED: u64 = 12345;

/// How often the original program for BERT goes through the text.
const DUPE_FACTOR: u32 = 5;

impl Prepare {
    fn format(&self) -> Format {
        match (self.format, self.goal) {
            (Form::Shards, _) => Format::Shards,
            (Form::Tfrecord, Goal::Bert) => Format::Tfrecord,
            (Form::Tfrecord, Goal::Electra) => Format::ElectraTfrecord,
        }
    }

    /// Errors: masks asked for where none are kept.
    fn instances(&self) -> Result<InstanceOptions, Usage> {
        let given = &self.instances;
        let default = match self.format() {
            Format::Shards | Format::Tfrecord => InstanceOptions::default(),
            Format::ElectraTfrecord => given.electra_defaults()?,
        };
        Ok(InstanceOptions {
            sequence_length: given.seq_length,
            max_predictions: given.max_predictions.unwrap_or(default.max_predictions),
            masked_lm_probability: given.masked_lm_prob.unwrap_or(default.masked_lm_probability),
            short_sequence_probability: given.short_seq_prob.unwrap_or(default.short_sequence_probability),
            whole_words: given.whole_word,
        })
    }

    fn dupe_factor(&self) -> u32 {
        let default = if self.format() == Format::ElectraTfrecord { 1 } else { DUPE_FACTOR };
        self.dupe_factor.unwrap_or(default)
    }
}

impl Instances {
    /// Those of records for ELECTRA.
    fn electra_defaults(&self) -> Result<InstanceOptions, Usage> {
        let masks = [
            ("--max-predictions", self.max_predictions.is_some()),
            ("--masked-lm-prob", self.masked_lm_prob.is_some()),
            ("--whole-word", self.whole_word),
        ];
        if let Some((name, _)) = masks.into_iter().find(|(_, is_given)| *is_given) {
            let reason = "records for ELECTRA hold no masks: these are drawn when they are read";
            return Err(Usage(format!("{name}: {reason}")));
        }
        let electra = ElectraOptions { sequence_length: self.seq_length, ..ElectraOptions::default() };
        Ok(InstanceOptions {
            max_predictions: electra.predictions(),
            masked_lm_probability: electra.masked_lm_probability,
            short_sequence_probability: electra.short_sequence_probability,
            ..InstanceOptions::default()
        })
    }
}

pub(super) fn run_prepare(options: &Prepare, common: &Common) -> anyhow::Result<()> {
    let start = Instant::now();
    let preparation = Preparation {
        inputs: options.inputs.clone(),
        documents: if options.one_document_a_file { Documents::Files } else { Documents::BlankLines },
        vocabulary: options.vocab.clone(),
        out: options.out.clone(),
        format: options.format(),
        instances: options.instances()?,
        dupe_factor: options.dupe_factor(),
        parts: options.shards,
        heldout: options.heldout,
        seed: common.seed.map_or(DEFAULT_SEED, u64::from),
        threads: common.device().threads,
    };
    let notify = common.notifier();
    let stop = StopSignal::from_system(None)?;
    let counts = prepare(&preparation, &|progress| notify(&|| progress_line(progress)), &|| stop.is_raised())?;
    print_counts(&counts, &options.out, start)
}

impl PrepareInstances {
    /// How masks are drawn, if anything is said of that.
    fn masking(&self) -> Option<PairMasking> {
        let usual = PairMasking::default();
        let is_given = self.masked_lm_prob.is_some() || self.whole_word || self.dupe_factor.is_some();
        is_given.then(|| PairMasking {
            probability: self.masked_lm_prob.unwrap_or(usual.probability),
            whole_words: self.whole_word,
            dupe_factor: self.dupe_factor.unwrap_or(usual.dupe_factor),
        })
    }
}

pub(super) fn run_prepare_instances(options: &PrepareInstances, common: &Common) -> anyhow::Result<()> {
    let start = Instant::now();
    let import = Import {
        inputs: options.inputs.clone(),
        val: options.val.clone(),
        vocabulary: options.vocab.clone(),
        out: options.out.clone(),
        sequence_length: options.seq_length,
        predictions: options.max_predictions,
        masking: options.masking(),
        seed: common.seed.map_or(DEFAULT_SEED, u64::from),
        threads: common.device().threads,
    };
    let notify = common.notifier();
    let stop = StopSignal::from_system(None)?;
    let counts = import.run(&|progress| notify(&|| progress_line(progress)), &|| stop.is_raised())?;
    print_counts(&counts, &options.out, start)
}

/// Prints what was made since `start`.
fn print_counts(counts: &[(Split, SplitCounts)], out: &Path, start: Instant) -> anyhow::Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    print(&format!("{}{}: {seconds:.1} s\n", counts_table(counts), out.display()))
}

pub(super) fn run_verify(options: &VerifyFolder, common: &Common) -> anyhow::Result<()> {
    let notify = common.notifier();
    let report = verify(&options.folder, common.device().threads, &|progress| notify(&|| progress_line(progress)))?;
    if options.json {
        print_json(&report)?;
    } else {
        let problems = report.problems.iter().map(|problem| format!("{problem}\n"));
        print(&(counts_table(&report.splits) + &problems.collect::<String>()))?;
    }
    match report.problems.len() {
        0 => Ok(()),
        count => {
            bail!(Usage(format!("{}: {}, listed above", options.folder.display(), counted(count as u64, "problem"))))
        }
    }
}

pub(super) fn run_sample(options: &Sample, common: &Common) -> anyhow::Result<()> {
    let (folder, split, seed) = (&options.folder, options.split, common.seed());
    let default = if Format::of(folder)? == Format::ElectraTfrecord { Goal::Electra } else { Goal::Bert };
    let vocabulary = Vocabulary::open(&folder.join(VOCABULARY_FILE))?;
    match options.goal.unwrap_or(default) {
        Goal::Bert => {
            let set = PretrainingSet::open(folder, split, None, seed)?;
            sample(options, seed, set.len(), |index| Ok(instance_text(&set.instance(0, index)?, &vocabulary)))
        }
        Goal::Electra => {
            let set = ElectraSet::open(folder, split, None, seed)?;
            sample(options, seed, set.len(), |index| Ok(electra_text(&set.instance(0, index)?, &vocabulary)))
        }
    }
}

/// Prints random ones of `len` instances.
fn sample(
    options: &Sample,
    seed: u64,
    len: usize,
    text: impl Fn(usize) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut rng = Purpose::Shuffle.stream(seed, 0, 0);
    for _ in 0..options.number.min(len) {
        let index = rng.below(len as u32) as usize;
        print(&format!("instance {index} of {len} in {}: {}", options.split.name(), text(index)?))?;
    }
    Ok(())
}

pub(super) fn run_tokenize(options: &Tokenize) -> anyhow::Result<()> {
    let tokenizer = TextTokenizer::new(Arc::new(Vocabulary::open(&options.vocab)?));
    for (index, line) in io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Usage(format!("standard input: line {}: not UTF-8", index + 1)).into(),
            _ => anyhow::Error::new(error).context("cannot read standard input"),
        })?;
        let ids = tokenizer.ids(&line);
        let tokens: Vec<&str> = ids.iter().map(|&id| tokenizer.vocabulary().token(id)).collect();
        if options.json {
            print(&format!("{}\n", json!({ "text": line, "tokens": tokens, "ids": ids })))?;
        } else {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            print(&format!("{}\t{}\n", tokens.join(" "), ids.join(" ")))?;
        }
    }
    Ok(())
}

fn progress_line(Progress { what, done, all }: Progress) -> String {
    format!("{what}: {done} of {all}")
}

/// A count, or a dash where it is not known.
fn known(count: Option<u64>) -> String {
    count.map_or("-".to_owned(), |count| count.to_string())
}

fn counts_table(counts: &[(Split, SplitCounts)]) -> String {
    let header = ["split", "documents", "sentences", "tokens", "instances", "unigram entropy", "bytes"];
    let mut table = Table::new(1, &header);
    for (split, found) in counts {
        table.row([
            split.name().to_owned(),
            known(found.documents),
            known(found.sentences),
            found.tokens.to_string(),
            found.instances.to_string(),
            format!("{:.4}", found.unigram_entropy),
            found.bytes.to_string(),
        ]);
    }
    table.to_string()
}

fn instance_text(instance: &Instance, vocabulary: &Vocabulary) -> String {
    let next = if instance.random_next { "of another document" } else { "what follows" };
    let (tokens, predictions) = (instance.tokens.len(), instance.masked.len());
    let segments = segments_text(&instance.tokens, &instance.segments, &instance.masked, vocabulary);
    format!("{tokens} tokens, {predictions} to predict, second segment {next}\n{segments}")
}

fn electra_text(instance: &ElectraInstance, vocabulary: &Vocabulary) -> String {
    let mut masked: Vec<(u32, u32)> = instance.predictions.iter().map(|word| (word.position, word.id)).collect();
    masked.sort_unstable();
    masked.dedup();
    let (tokens, predictions) = (instance.masked_tokens(vocabulary.specials().mask), instance.predictions.len());
    let segments = segments_text(&tokens, &instance.segments, &masked, vocabulary);
    let repeated = predictions - masked.len();
    format!("{} tokens, {predictions} to predict, {repeated} of them once more\n{segments}", tokens.len())
}

/// Segments, a line each; what is to be predicted, in the order of the positions, follows what is there.
fn segments_text(tokens: &[u32], segments: &[u8], masked: &[(u32, u32)], vocabulary: &Vocabulary) -> String {
    let mut masked = masked.iter().peekable();
    let mut lines = [String::new(), String::new()];
    for (position, (&id, &segment)) in (0..).zip(tokens.iter().zip(segments)) {
        let text = &mut lines[usize::from(segment)];
        *text += &format!(" {}", vocabulary.token(id));
        if let Some((_, original)) = masked.next_if(|(at, _)| *at == position) {
            *text += &format!("{{{}}}", vocabulary.token(*original));
        }
    }
    let there = ["A", "B"].iter().zip(&lines).filter(|(_, text)| !text.is_empty());
    there.map(|(name, text)| format!("  {name}:{text}\n")).collect()
}
