use std::fs;
use std::sync::Arc;

use bessemer_data::text::{TextTokenizer, Vocabulary};
use serde_json::Value;

use crate::common::{shared, tokenizer};

fn tokens(tokenizer: &TextTokenizer, text: &str) -> String {
    let ids = tokenizer.ids(text);
    ids.iter().map(|&id| tokenizer.vocabulary().token(id)).collect::<Vec<_>>().join(" ")
}

#[test]
fn words_are_cut_into_the_longest_pieces() {
    let words =
        ["un", "##aff", "##able", "##a", "the", "cafe", "strasse", "stra", "##ß", "##e", "i", "'", "m", ",", "!", "京"];
    let tokenizer = tokenizer(&words);
    for (text, expected) in [
        ("The  unaffable\tcafé", "the un ##aff ##able cafe"),
        ("unaffa", "un ##aff ##a"),
        ("unaffx the", "[UNK] the"),
        ("I'm, the!!", "i ' m , the ! !"),
        ("京京the", "京 京 the"),
        ("STRAßE", "stra ##ß ##e"),
        ("th\u{0}e t\u{ad}he\u{200b}", "the the"),
        ("[MASK] the[SEP]", "[MASK] the [SEP]"),
        ("cafe\u{301}", "cafe"),
        (" \n ", ""),
        ("", ""),
    ] {
        assert_eq!(tokens(&tokenizer, text), expected, "{text:?}");
    }
}

#[test]
fn words_of_more_than_100_characters_are_unknown() {
    let tokenizer = tokenizer(&["a", "##a"]);
    assert_eq!(tokenizer.ids(&"a".repeat(100)).len(), 100);
    assert_eq!(tokens(&tokenizer, &"a".repeat(101)), "[UNK]");
}

/// Results of Hugging Face's `BertWordPieceTokenizer` with BERT's vocabulary.
#[test]
fn real_texts_give_the_tokens_of_the_reference() {
    let (Some(vocabulary), Some(cases)) = (shared("vocab/vocab.txt"), shared("vocab/tokenization_cases.jsonl")) else {
        return;
    };
    let tokenizer = TextTokenizer::new(Arc::new(Vocabulary::open(&vocabulary).unwrap()));
    let cases = fs::read_to_string(cases).unwrap();
    for case in cases.lines() {
        let case: Value = serde_json::from_str(case).unwrap();
        let ids = tokenizer.ids(case["text"].as_str().unwrap());
        let tokens: Vec<&str> = ids.iter().map(|&id| tokenizer.vocabulary().token(id)).collect();
        assert_eq!(serde_json::json!(tokens), case["tokens"], "{}", case["text"]);
        assert_eq!(serde_json::json!(ids), case["ids"], "{}", case["text"]);
    }
    assert_eq!(cases.lines().count(), 369);
}
