//! Text to pre-train on: vocabulary, tokens, and sequences for BERT and ELECTRA.
//!
//! [`prepare`] reads documents from text files, cuts them into sentences and those into tokens, and writes token shards,
//! which serve both models, or TFRecord files of sequences for one of them. An [`Import`] makes such files of instances for BERT that other
//! programs have made. A [`PretrainingSet`] opens either for BERT:
//! instances of masked segment pairs. An [`ElectraSet`] opens them for ELECTRA: segments of one document, whose masks are
//! drawn when they are read. A [`Loader`](crate::Loader) makes batches of a set, as the model is fed. What is drawn is a
//! pure function of seed, epoch and index, and what was made once of its place in the files, so that any batch can be
//! made again.

mod batch;
mod corpus;
mod electra;
mod example;
mod features;
mod folder;
mod import;
mod instance;
mod maker;
mod masking;
mod pairs;
mod prepare;
mod record_set;
mod sentences;
mod sequence;
mod set;
mod shard;
mod shard_set;
mod source;
mod store;
mod synthetic;
mod tokenizer;
mod verify;
mod vocabulary;
mod write_records;

pub use corpus::Documents;
pub use electra::{ElectraInstance, ElectraOptions, ElectraSet, Prediction};
pub(crate) use folder::write_whole;
pub use folder::{Format, Settings, SplitCounts, VOCABULARY_FILE};
pub use import::{Import, PairMasking};
pub use instance::{Instance, InstanceOptions};
pub use prepare::{Notify, Preparation, Progress, Stop, prepare};
pub use sentences::sentences;
pub use set::PretrainingSet;
pub use synthetic::SyntheticText;
pub use tokenizer::TextTokenizer;
pub use verify::{TextReport, verify};
pub use vocabulary::{Specials, Vocabulary, VocabularyIdentity};
