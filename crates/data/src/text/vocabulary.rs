use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::utf8::text_of;
use crate::{DataError, FilePosition, hex};

/// What a line of a vocabulary is.
const LAYOUT: &str = "one token a line, each once, with [PAD], [UNK], [CLS], [SEP] and [MASK] among them";
const CONTINUATION: &str = "##";

/// The tokens of a model: `vocab.txt`, one a line; a token's id is the number of its line, counted from 0.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    tokens: Vec<String>,
    continues: Vec<bool>,
    specials: Specials,
    hash: [u8; 32],
}

/// What distinguishes vocabularies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VocabularyIdentity {
    /// Number of tokens.
    pub entries: u64,
    /// Lower-case hexadecimal SHA-256 of the tokens with a line feed between them.
    pub sha256: String,
}

impl fmt::Display for VocabularyIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries, SHA-256 {}", self.entries, self.sha256)
    }
}

/// Ids of the tokens that stand for no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Specials {
    /// Id of `[PAD]`.
    pub pad: u32,
    /// Id of `[UNK]`.
    pub unknown: u32,
    /// Id of `[CLS]`.
    pub cls: u32,
    /// Id of `[SEP]`.
    pub sep: u32,
    /// Id of `[MASK]`.
    pub mask: u32,
}

impl Specials {
    /// Their names in the vocabulary.
    pub const NAMES: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

    /// Whether a token marks structure, so that it is never to be predicted. `[UNK]` stands for a word and may be.
    pub fn is_structure(&self, id: u32) -> bool {
        [self.pad, self.cls, self.sep, self.mask].contains(&id)
    }
}

impl Vocabulary {
    /// Reads a vocabulary file.
    ///
    /// Errors: a file that cannot be read or is not UTF-8, an empty or repeated line, a special token that is missing.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(DataError::io(path, "read the vocabulary"))?;
        Self::parse(&bytes, path)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Self, DataError> {
        let text = text_of(path, bytes, LAYOUT)?;
        let mut ids = HashMap::new();
        for (index, token) in text.lines().enumerate() {
            let error = |problem: String| DataError::content(path, FilePosition::Line(index + 1), problem, LAYOUT);
            if token.is_empty() {
                return Err(error("the line is empty".to_owned()));
            }
            if let Some(first) = ids.insert(token, index as u32) {
                return Err(error(format!("`{token}` is on line {} already", first + 1)));
            }
        }
        if ids.is_empty() {
            return Err(DataError::layout(path, "the vocabulary is empty", LAYOUT));
        }
        let special = |name: &str| {
            let id = ids.get(name).copied();
            id.ok_or_else(|| DataError::layout(path, format!("none of the {} lines is {name}", ids.len()), LAYOUT))
        };
        let [pad, unknown, cls, sep, mask] = Specials::NAMES;
        let specials = Specials {
            pad: special(pad)?,
            unknown: special(unknown)?,
            cls: special(cls)?,
            sep: special(sep)?,
            mask: special(mask)?,
        };
        let tokens: Vec<String> = text.lines().map(str::to_owned).collect();
        let continues = tokens.iter().map(|token| token.starts_with(CONTINUATION)).collect();
        let hash = Sha256::digest(tokens.join("\n")).into();
        Ok(Self { tokens, continues, specials, hash })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Always false: a vocabulary has its special tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// All tokens, by id.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The token of an id.
    ///
    /// # Panics
    /// If the vocabulary has no such id.
    pub fn token(&self, id: u32) -> &str {
        &self.tokens[id as usize]
    }

    /// Whether the token continues a word: it begins with `##`.
    pub fn continues_word(&self, id: u32) -> bool {
        self.continues[id as usize]
    }

    /// Ids of the special tokens.
    pub fn specials(&self) -> Specials {
        self.specials
    }

    /// SHA-256 of the tokens.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// What distinguishes it from others.
    pub fn identity(&self) -> VocabularyIdentity {
        VocabularyIdentity { entries: self.tokens.len() as u64, sha256: hex(&self.hash) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n";

    fn parse(bytes: impl AsRef<[u8]>) -> Result<Vocabulary, DataError> {
        Vocabulary::parse(bytes.as_ref(), Path::new("vocab.txt"))
    }

    #[test]
    fn ids_are_line_numbers() {
        let vocabulary = parse(GOOD).unwrap();
        assert_eq!((vocabulary.len(), vocabulary.token(5)), (7, "the"));
        assert_eq!(vocabulary.specials(), Specials { pad: 0, unknown: 1, cls: 2, sep: 3, mask: 4 });
        assert!(vocabulary.continues_word(6) && !vocabulary.continues_word(5));
        assert_eq!(vocabulary.hash(), parse(GOOD.replace('\n', "\r\n")).unwrap().hash());
        assert_ne!(vocabulary.hash(), parse(GOOD.replace("the", "a")).unwrap().hash());
        let expected = "7 entries, SHA-256 246deada706640bd76279d2ddf363e51bc4cb2cf3282d0b6bfad88fac2be4c7d";
        assert_eq!(vocabulary.identity().to_string(), expected);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let message = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(message(b"").starts_with("vocab.txt: the vocabulary is empty; expected one token a line"));
        for name in Specials::NAMES {
            let text = message(GOOD.replace(name, "x").as_bytes());
            assert!(text.starts_with(&format!("vocab.txt: none of the 7 lines is {name};")), "{text}");
        }
        let repeated = message(format!("{GOOD}the\n").as_bytes());
        assert!(repeated.starts_with("vocab.txt: line 8: `the` is on line 6 already;"), "{repeated}");
        let empty = message(GOOD.replace("the", "").as_bytes());
        assert!(empty.starts_with("vocab.txt: line 6: the line is empty;"), "{empty}");
        let garbled = message(&[GOOD.as_bytes(), b"a\xff\n"].concat());
        assert!(garbled.starts_with("vocab.txt: line 8: the line is not UTF-8;"), "{garbled}");
        let missing = Vocabulary::open(Path::new("no/vocab.txt")).unwrap_err().to_string();
        assert!(missing.starts_with("no/vocab.txt: cannot read the vocabulary: "), "{missing}");
    }
}
