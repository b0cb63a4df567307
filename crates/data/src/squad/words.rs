use std::ops::{Range, RangeInclusive};

use super::Answer;

/// Characters of the longest word.
const LONGEST: usize = 1000;

/// Where the words of a text lie in its bytes. They are separated by blanks, tabs, line ends and narrow no-break
/// spaces alone, but what has more than [`LONGEST`] characters, such as a text without blanks, is cut: answers are looked for in
/// the words that they touch, which takes as long as these.
pub(super) fn words(text: &str) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    // The first byte of a word, and its characters so far.
    let mut open: Option<(usize, usize)> = None;
    for (byte, character) in text.char_indices() {
        open = match (is_separator(character), open) {
            (true, Some((first, _))) => {
                words.push(first..byte);
                None
            }
            (false, Some((first, LONGEST))) => {
                words.push(first..byte);
                Some((byte, 1))
            }
            (false, Some((first, length))) => Some((first, length + 1)),
            (false, None) => Some((byte, 1)),
            (true, None) => None,
        };
    }
    words.extend(open.map(|(first, _)| first..text.len()));
    words
}

/// Words with a blank between them, unless they are parts of one that was cut.
pub(super) fn joined(text: &str, words: &[Range<usize>]) -> String {
    let mut joined = String::new();
    let mut end = None;
    for word in words {
        if end.is_some_and(|end| end != word.start) {
            joined.push(' ');
        }
        joined += &text[word.clone()];
        end = Some(word.end);
    }
    joined
}

/// The words of a text that an answer touches, if its own words are among them.
pub(super) fn words_of_answer(text: &str, words: &[Range<usize>], answer: &Answer) -> Option<RangeInclusive<usize>> {
    let bytes: Vec<usize> = text.char_indices().map(|(byte, _)| byte).collect();
    let last = (answer.start + answer.text.chars().count()).checked_sub(1)?.min(bytes.len().checked_sub(1)?);
    let word_at = |byte: usize| words.partition_point(|word| word.start <= byte).saturating_sub(1);
    let touched = word_at(*bytes.get(answer.start)?)..=word_at(bytes[last]);
    let wanted = answer.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = !wanted.is_empty() && joined(text, words.get(touched.clone())?).contains(&wanted);
    found.then_some(touched)
}

fn is_separator(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n' | '\u{202f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        words(text).into_iter().map(|word| &text[word]).collect()
    }

    fn touched(text: &str, start: usize, answer: &str) -> Option<String> {
        let words = words(text);
        let answer = Answer { text: answer.to_owned(), start };
        words_of_answer(text, &words, &answer).map(|touched| joined(text, &words[touched]))
    }

    #[test]
    fn five_characters_separate_words() {
        assert_eq!(split(" a\tb\r\nc\u{202f}d  e "), ["a", "b", "c", "d", "e"]);
        assert_eq!(split("a\u{a0}b\u{3000}c é,f"), ["a\u{a0}b\u{3000}c", "é,f"]);
        assert!(split("").is_empty() && split(" \n ").is_empty());
    }

    #[test]
    fn texts_without_separators_are_cut() {
        let text = format!("a {}b", "é".repeat(2 * LONGEST));
        let bounds = words(&text);
        let lengths: Vec<usize> = bounds.iter().map(|word| text[word.clone()].chars().count()).collect();
        assert_eq!(lengths, [1, LONGEST, LONGEST, 1]);
        assert_eq!(joined(&text, &bounds), text);
        assert_eq!(words(&"x".repeat(LONGEST)).len(), 1);
    }

    #[test]
    fn answers_grow_to_whole_words() {
        assert_eq!(touched("in (1066), Normans", 4, "1066").as_deref(), Some("(1066),"));
        assert_eq!(touched("é the\ncat sat", 2, "the cat").as_deref(), Some("the cat"));
        assert_eq!(touched("the cat", 6, "t").as_deref(), Some("cat"));
        assert_eq!(touched("the cat", 3, " cat").as_deref(), Some("the cat"), "a separator is of the word before");
    }

    #[test]
    fn answers_elsewhere_are_not_found() {
        assert_eq!(touched("the cat", 0, "cat"), None);
        assert_eq!(touched("the cat", 7, "t"), None);
        assert_eq!(touched("the cat", 4, ""), None);
        assert_eq!(touched("", 0, "cat"), None);
        assert_eq!(touched("a\u{a0}b", 0, "a b"), None);
        assert_eq!(touched("the cat", 4, "cat").as_deref(), Some("cat"));
    }
}
