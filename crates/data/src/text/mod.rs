//! Text to pre-train BERT on: vocabulary, tokens, and instances of masked segment pairs.
//!
//! [`prepare`] reads documents from text files, cuts them into sentences and those into tokens, and writes token
//! shards, or TFRecord files of instances. A [`PretrainingSet`] opens either, and a
//! [`Loader`](crate::Loader) makes batches of it, as the model is fed. Instances of shards are a pure function of seed, epoch and index, and static ones of their
//! place in the files, so that any batch can be made again.

mod batch;
mod corpus;
mod example;
mod folder;
mod instance;
mod masking;
mod pairs;
mod prepare;
mod record_set;
mod sentences;
mod set;
mod shard;
mod shard_set;
mod store;
mod synthetic;
mod tokenizer;
mod verify;
mod vocabulary;
mod write_records;

pub use batch::PretrainingBatch;
pub use corpus::Documents;
pub(crate) use folder::write_whole;
pub use folder::{Format, Settings, SplitCounts, VOCABULARY_FILE};
pub use instance::{Instance, InstanceOptions};
pub use prepare::{Preparation, Progress, Tell, prepare};
pub use sentences::sentences;
pub use set::PretrainingSet;
pub use synthetic::SyntheticText;
pub use tokenizer::TextTokenizer;
pub use verify::{TextReport, verify};
pub use vocabulary::{Specials, Vocabulary};
