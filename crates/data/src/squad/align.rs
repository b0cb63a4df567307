//! From tokens back to the text as it was written.

use std::collections::HashMap;

use crate::text::TextTokenizer;

/// Words as the tokenizer sees them before it cuts them into pieces, each worked out once.
pub(super) struct Spelling<'a> {
    tokenizer: &'a TextTokenizer,
    known: HashMap<String, String>,
}

impl<'a> Spelling<'a> {
    pub(super) fn new(tokenizer: &'a TextTokenizer) -> Self {
        Self { tokenizer, known: HashMap::new() }
    }

    /// In lower case and without accents, punctuation marks a blank apart; the same for words of a text as for all of it.
    fn of(&mut self, words: &str) -> String {
        let mut spelled = String::with_capacity(words.len() + 8);
        for word in words.split(' ') {
            if !self.known.contains_key(word) {
                self.known.insert(word.to_owned(), self.tokenizer.words(word).join(" "));
            }
            let known = &self.known[word];
            if !spelled.is_empty() && !known.is_empty() {
                spelled.push(' ');
            }
            spelled += known;
        }
        spelled
    }
}

/// The text that pieces of words stand for: in lower case, punctuation apart.
pub(super) fn detokenized<'a>(pieces: impl Iterator<Item = &'a str>) -> String {
    let joined = pieces.collect::<Vec<_>>().join(" ");
    joined.replace(" ##", "").replace("##", "").trim().to_owned()
}

/// The part of `original`, words of a paragraph, that `predicted`, made of tokens, stands for.
///
/// This is the official way: `original` is cut into words as the tokenizer does, `predicted` is looked for in them, and
/// its characters are counted off in `original`, blanks aside. Where it does not occur, or the two have not equally many
/// characters, it is all of `original`.
pub(super) fn final_text<'a>(predicted: &str, original: &'a str, spelling: &mut Spelling<'_>) -> &'a str {
    aligned(predicted, original, &spelling.of(original)).unwrap_or(original)
}

fn aligned<'a>(predicted: &str, original: &'a str, tokenized: &str) -> Option<&'a str> {
    let start = tokenized.find(predicted)?;
    let is_inked = |&(_, character): &(usize, char)| character != ' ';
    let inked = |text: &str| text.chars().filter(|character| *character != ' ').count();
    let places: Vec<(usize, char)> = original.char_indices().filter(is_inked).collect();
    if places.len() != inked(tokenized) {
        return None;
    }
    let first = inked(&tokenized[..start]);
    let last = (first + inked(predicted)).checked_sub(1).filter(|_| !predicted.is_empty())?;
    let (end, character) = *places.get(last)?;
    original.get(places[first].0..end + character.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Vocabulary;

    #[test]
    fn pieces_are_joined() {
        assert_eq!(detokenized(["un", "##aff", "##able", "cat"].into_iter()), "unaffable cat");
        assert_eq!(detokenized(["##able", "-", "cat"].into_iter()), "able - cat");
        assert_eq!(detokenized([].into_iter()), "");
    }

    #[test]
    fn words_are_spelled_alike_alone_and_in_a_text() {
        let path = tempfile::tempdir().unwrap();
        let path = path.path().join("vocab.txt");
        std::fs::write(&path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]").unwrap();
        let tokenizer = TextTokenizer::new(Vocabulary::open(&path).unwrap().into());
        let mut spelling = Spelling::new(&tokenizer);
        for (text, expected) in [
            ("L'École (Straße),", "l ' ecole ( straße ) ,"),
            ("a \u{0} b\u{301} \u{301}c", "a b c"),
            ("x\u{a0}y 東京 [MASK] x\u{a0}y", "x y 東 京 [ mask ] x y"),
            ("", ""),
        ] {
            assert_eq!(spelling.of(text), expected, "{text:?}");
            assert_eq!(tokenizer.words(text).join(" "), expected, "{text:?}");
        }
    }

    #[test]
    fn characters_are_counted_off() {
        for (predicted, original, tokenized, expected) in [
            ("steve smith", "Steve Smith's", "steve smith ' s", Some("Steve Smith")),
            ("1066", "(1066),", "( 1066 ) ,", Some("1066")),
            ("ecole", "l'École,", "l ' ecole ,", Some("École")),
            ("a", "b a", "b a", Some("a")),
            ("u . s . a .", "the U.S.A. today", "the u . s . a . today", Some("U.S.A.")),
            ("x", "b a", "b a", None),
            ("a", "a\u{301}b", "ab", None),
            ("", "a b", "a b", None),
        ] {
            assert_eq!(aligned(predicted, original, tokenized), expected, "{predicted:?} in {original:?}");
        }
    }
}
