//! What an evaluation feeds besides the sequences.

use crate::tasks::loaded::Feeder;
use crate::tasks::{Array, Feeds};
use bessemer_data::Position;

/// Adds what the samples of an evaluation are drawn by: `first_example` `i32[]`, the number of the first sequence of the batch
/// in the data set, and where tokens come by their frequencies `log_frequencies` `f32[V]`.
#[derive(Clone)]
pub(in crate::tasks) struct EvaluationFeeds {
    pub batch_size: usize,
    pub log_frequencies: Option<Vec<f32>>,
}

impl Feeder for Option<EvaluationFeeds> {
    fn complete(&self, feeds: &mut Feeds, position: Position) {
        let Some(EvaluationFeeds { batch_size, log_frequencies }) = self else { return };
        feeds.push("first_example", Array::I32(vec![(position.batch * batch_size) as i32]));
        if let Some(logs) = log_frequencies {
            feeds.push("log_frequencies", Array::F32(logs.clone()));
        }
    }
}
