//! Questions about paragraphs, as SQuAD 1.1 and 2.0 have them, and answers taken from the paragraphs.
//!
//! A [`SquadSet`] is what a file says. [`Features`] are its questions in tokens: each with one or more [`Window`]s onto
//! its paragraph, which are what a model sees; a [`Loader`](crate::Loader) makes batches of them. [`Answers`] turns what
//! the model says of windows into [`Predictions`] in the official form. All follows the rules of BERT and ELECTRA.

mod align;
mod answers;
mod batch;
mod cache;
mod candidates;
mod entries;
mod features;
mod parse;
mod predictions;
mod set;
mod tokens;
mod window;
mod words;

pub use answers::{AnswerOptions, Answers};
pub use cache::Origin;
pub use candidates::{Beam, top_k};
pub use entries::{read_no_answer_probabilities, read_predictions};
pub use features::{Features, WindowOptions};
pub use predictions::{Candidate, Prediction, Predictions};
pub use set::{Answer, Misplaced, Paragraph, Question, SquadSet, Version};
pub use window::Window;
