use std::collections::HashMap;

/// The words that count: lower case, without ASCII punctuation and articles, each a blank apart.
pub fn normalized(text: &str) -> String {
    let bare: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let without = without_articles(&bare);
    without.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Whether a prediction has the words of an answer.
pub fn exact_match(prediction: &str, answer: &str) -> bool {
    normalized(prediction) == normalized(answer)
}

/// F1 over words, from 0 to 1; 0 where either has no words.
///
/// `2 p r / (p + r)` with `p` and `r` the shares of the prediction's and of the answer's words that the other has, each
/// word as often as it occurs.
pub fn f1(prediction: &str, answer: &str) -> f64 {
    f1_of_normalized(&normalized(prediction), &normalized(answer))
}

pub(super) fn f1_of_normalized(prediction: &str, answer: &str) -> f64 {
    let (predicted, expected) = (words(prediction), words(answer));
    let mut left: HashMap<&str, usize> = HashMap::new();
    for &word in &expected {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in &predicted {
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 {
        return 0.0;
    }
    let precision = f64::from(common) / predicted.len() as f64;
    let recall = f64::from(common) / expected.len() as f64;
    2.0 * precision * recall / (precision + recall)
}

fn words(normalized: &str) -> Vec<&str> {
    normalized.split(' ').filter(|word| !word.is_empty()).collect()
}

/// Each run of letters and digits that is an article becomes a blank.
fn without_articles(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (run, behind) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len()));
        kept += if ["a", "an", "the"].contains(&run) { " " } else { run };
        let (between, next) = behind.split_at(behind.find(char::is_alphanumeric).unwrap_or(behind.len()));
        kept += between;
        rest = next;
    }
    kept
}

/// White space as Python's `str.split` knows it, which has the four separators of ASCII among it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_counts() {
        for (text, expected) in [
            ("The Cat", "cat"),
            ("a an the", ""),
            ("", ""),
            ("  an  apple\ta day\n", "apple day"),
            ("there, Anna; theatre", "there anna theatre"),
            ("U.S.A.", "usa"),
            ("the-cat", "thecat"),
            ("$1,000.50 (approx.)", "100050 approx"),
            ("don't", "dont"),
            ("a\u{2013}b the\u{2019}s", "\u{2013}b \u{2019}s"),
            ("ÉCOLE Straße İ", "école straße i\u{307}"),
            ("ΟΔΟΣ", "οδος"),
            ("é a\u{a0}b\u{3000}c\u{1f}d", "é b c d"),
            ("a_an", "aan"),
            ("東京 the 都", "東京 都"),
        ] {
            assert_eq!(normalized(text), expected, "{text:?}");
        }
    }

    #[test]
    fn f1_counts_words_as_often_as_they_occur() {
        assert_eq!(f1("the cat sat", "cat sat down"), 0.8);
        assert_eq!(f1("x x x y", "x y y"), 2.0 * 0.5 * (2.0 / 3.0) / (0.5 + 2.0 / 3.0));
        assert_eq!(f1("A cat!", "the cat"), 1.0);
        assert_eq!(f1("dog", "cat"), 0.0);
        assert_eq!((f1("", "cat"), f1("the", "a"), f1("cat", "!")), (0.0, 0.0, 0.0));
    }

    #[test]
    fn exact_match_is_of_words() {
        assert!(exact_match("The  Eiffel Tower.", "eiffel tower") && exact_match("the", ""));
        assert!(!exact_match("Eiffel Towers", "Eiffel Tower"));
    }
}
