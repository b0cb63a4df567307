//! Texts that a person gives to a model.

use crate::error::TrainError;
use bessemer_models::bert::BertConfig;

/// # Errors
/// A text of more tokens, special ones included, than the model has positions.
pub(crate) fn check_text(text: &str, tokens: usize, config: &BertConfig) -> Result<(), TrainError> {
    let most = config.max_position_embeddings;
    if tokens <= most {
        return Ok(());
    }
    let allowed = format!("it is {tokens} tokens with [CLS] and [SEP], and the model has {most} positions");
    Err(TrainError::setting("the text", quoted(text), allowed))
}

/// The beginning of a text, for messages.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}
