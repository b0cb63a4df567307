use std::sync::Arc;

use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer,
};

use super::{Specials, Vocabulary};

/// From text to the ids of an uncased WordPiece vocabulary.
///
/// Control characters are dropped, ideographs stand alone, letters become lower case without accents, punctuation is
/// split off, and each word is cut into the longest pieces that the vocabulary has; a word that cannot be cut, or has
/// more than 100 characters, is `[UNK]`. Special tokens in the text are kept whole.
#[derive(Clone)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    vocabulary: Arc<Vocabulary>,
}

impl TextTokenizer {
    /// The tokenizer of a vocabulary.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        let ids: ahash::AHashMap<String, u32> = vocabulary.tokens().iter().cloned().zip(0..).collect();
        let model = WordPiece::builder().vocab(ids).build().expect("no file is read");
        let mut tokenizer = Tokenizer::new(model);
        let specials = Specials::NAMES.map(|name| AddedToken::from(name, true));
        let normalizer = BertNormalizer::new(true, true, None, true);
        tokenizer.with_normalizer(Some(normalizer)).expect("no token was added before");
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        tokenizer.add_special_tokens(specials).expect("the vocabulary has them");
        Self { tokenizer, vocabulary }
    }

    /// Ids of the tokens of a text, without `[CLS]` and `[SEP]` around them.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        let encoding = self.tokenizer.encode_fast(text, false).expect("a vocabulary with [UNK] fits every text");
        encoding.get_ids().to_vec()
    }

    /// Words and punctuation marks of a text before they are cut into pieces, in lower case and without accents.
    pub fn words(&self, text: &str) -> Vec<String> {
        let mut normalized = NormalizedString::from(text);
        let normalizer = self.tokenizer.get_normalizer().expect("there is one");
        normalizer.normalize(&mut normalized).expect("every text can be normalized");
        let mut words = PreTokenizedString::from(normalized);
        let pre_tokenizer = self.tokenizer.get_pre_tokenizer().expect("there is one");
        pre_tokenizer.pre_tokenize(&mut words).expect("every text can be split");
        let words = words.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        words.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }
}
