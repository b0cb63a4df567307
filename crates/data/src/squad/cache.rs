//! Features in a file.
//!
//! All numbers are little endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `BSMRQUAD` |
//! | 4 | version, 1 |
//! | 32 | SHA-256 of what the features depend on |
//! | 8 x 8 | numbers in each of the sections below |
//! | 8 x 4 | CRC-32C of each section |
//! | 4 | CRC-32C of all before |
//! | `n` x 4 each | tokens of paragraphs, where each paragraph ends, word of each token, tokens of questions, where each question ends, paragraph of each question, windows with 6 numbers each, questions left out |

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::features::{Content, Rows, WindowSpan};
use crate::text::write_whole;
use crate::{DataError, hex};

const MAGIC: &[u8; 8] = b"BSMRQUAD";
const VERSION: u32 = 1;
const SECTIONS: usize = 8;
const KEY_AT: usize = 12;
const COUNTS_AT: usize = KEY_AT + 32;
const CHECKSUMS_AT: usize = COUNTS_AT + SECTIONS * 8;
const HEADER_BYTES: usize = CHECKSUMS_AT + SECTIONS * 4 + 4;
const SPOT_NUMBERS: usize = 6;

/// Where features come from, and the file that holds them now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// There was no file.
    Built(PathBuf),
    /// Features were read from this file.
    Read(PathBuf),
    /// The file could not be used; the user is informed.
    Rebuilt(PathBuf, String),
}

/// The file in a folder for features of that key.
pub(super) fn path(folder: &Path, key: &[u8; 32]) -> PathBuf {
    folder.join(format!("squad-{}.features", hex(&key[..8])))
}

pub(super) fn write(path: &Path, key: &[u8; 32], content: &Content) -> Result<(), DataError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(DataError::writing(folder, "create the folder"))?;
    }
    write_whole(path, &encode(key, content))
}

/// The features of that key in a vocabulary of that many tokens; `None` if there is no file.
///
/// Errors: why a file is of no use.
pub(super) fn read(path: &Path, key: &[u8; 32], vocabulary: usize) -> Result<Option<Content>, String> {
    match fs::read(path) {
        Ok(bytes) => decode(&bytes, key, vocabulary).map(Some).map_err(str::to_owned),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

fn encode(key: &[u8; 32], content: &Content) -> Vec<u8> {
    let spots: Vec<u32> = content.spots.iter().flat_map(spot_numbers).collect();
    frame(
        key,
        [
            &content.contexts.values,
            &content.contexts.ends,
            &content.words,
            &content.queries.values,
            &content.queries.ends,
            &content.paragraphs,
            &spots,
            &content.left_out,
        ],
    )
}

fn frame(key: &[u8; 32], sections: [&[u32]; SECTIONS]) -> Vec<u8> {
    let bodies = sections.map(|numbers| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(key);
    sections.iter().for_each(|numbers| bytes.extend((numbers.len() as u64).to_le_bytes()));
    bodies.iter().for_each(|body| bytes.extend(crc32c::crc32c(body).to_le_bytes()));
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bodies.iter().for_each(|body| bytes.extend(body));
    bytes
}

fn decode(bytes: &[u8], key: &[u8; 32], vocabulary: usize) -> Result<Content, &'static str> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    if bytes.len() < HEADER_BYTES || bytes[..8] != *MAGIC {
        return Err("it is no file of SQuAD features");
    }
    if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != word(HEADER_BYTES - 4) {
        return Err("its header does not fit its checksum");
    }
    if word(8) != VERSION {
        return Err("it is of another version");
    }
    if bytes[KEY_AT..COUNTS_AT] != *key {
        return Err("it is of other data, another vocabulary or other lengths");
    }
    let mut rest = &bytes[HEADER_BYTES..];
    let mut sections: [Vec<u32>; SECTIONS] = Default::default();
    for (number, section) in sections.iter_mut().enumerate() {
        let length = usize::try_from(long(COUNTS_AT + 8 * number)).ok().and_then(|count| count.checked_mul(4));
        let (body, behind) = length.and_then(|length| rest.split_at_checked(length)).ok_or("it is cut off")?;
        if crc32c::crc32c(body) != word(CHECKSUMS_AT + 4 * number) {
            return Err("its content does not fit its checksum");
        }
        *section = body.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect();
        rest = behind;
    }
    if !rest.is_empty() {
        return Err("it is too long");
    }
    let [context_ids, context_ends, words, query_ids, query_ends, paragraphs, spots, left_out] = sections;
    let (spots, []) = spots.as_chunks() else {
        return Err("its last window is cut off");
    };
    let content = Content {
        contexts: Rows { values: context_ids, ends: context_ends },
        words,
        queries: Rows { values: query_ids, ends: query_ends },
        paragraphs,
        spots: spots.iter().map(spot).collect(),
        left_out,
    };
    if fits(&content, vocabulary) { Ok(content) } else { Err("its parts do not fit each other") }
}

/// Whether tokens are of the vocabulary, and every row, question and position that is named is there. Words are not compared with the
/// texts, which the file does not have.
fn fits(content: &Content, vocabulary: usize) -> bool {
    let Content { contexts, words, queries, paragraphs, spots, left_out } = content;
    let rises =
        |rows: &Rows| rows.ends.is_sorted() && rows.ends.last().map_or(0, |&end| end as usize) == rows.values.len();
    let is_answered = |spot: &WindowSpan| {
        let [first, last] = spot.answer.map(|position| position as usize);
        let start = queries.row(spot.question as usize).len() + 2;
        spot.answer == [0, 0] || (start <= first && first <= last && last < start + spot.tokens as usize)
    };
    let lies_within = |spot: &WindowSpan| {
        let paragraph = paragraphs.get(spot.question as usize);
        let tokens = paragraph.map(|&paragraph| contexts.row(paragraph as usize).len() as u64);
        tokens.is_some_and(|tokens| u64::from(spot.start) + u64::from(spot.tokens) <= tokens) && is_answered(spot)
    };
    let is_known = |rows: &Rows| rows.values.iter().all(|&token| (token as usize) < vocabulary);
    is_known(contexts)
        && is_known(queries)
        && rises(contexts)
        && rises(queries)
        && words.len() == contexts.values.len()
        && paragraphs.len() == queries.ends.len()
        && paragraphs.iter().all(|&paragraph| (paragraph as usize) < contexts.ends.len())
        && left_out.iter().all(|&question| (question as usize) < paragraphs.len())
        && spots.iter().all(lies_within)
}

fn spot_numbers(spot: &WindowSpan) -> [u32; SPOT_NUMBERS] {
    let WindowSpan { question, start, tokens, answer: [first, last], is_impossible } = *spot;
    [question, start, tokens, first, last, is_impossible.into()]
}

fn spot(numbers: &[u32; SPOT_NUMBERS]) -> WindowSpan {
    let [question, start, tokens, first, last, is_impossible] = *numbers;
    WindowSpan { question, start, tokens, answer: [first, last], is_impossible: is_impossible != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const VOCABULARY: usize = 10;

    fn content() -> Content {
        let spot = WindowSpan { question: 0, start: 1, tokens: 2, answer: [3, 4], is_impossible: true };
        Content {
            contexts: Rows { values: vec![5, 6, 7], ends: vec![3] },
            words: vec![0, 0, 1],
            queries: Rows { values: vec![9], ends: vec![1, 1] },
            paragraphs: vec![0, 0],
            spots: vec![spot, WindowSpan { is_impossible: false, ..spot }],
            left_out: vec![1],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(&encode(&KEY, &content()), &KEY, VOCABULARY), Ok(content()));
        assert_eq!(decode(&encode(&KEY, &Content::default()), &KEY, VOCABULARY), Ok(Content::default()));
        assert_eq!(
            decode(&encode(&[8; 32], &content()), &KEY, VOCABULARY).unwrap_err().split(' ').nth(3),
            Some("other")
        );
    }

    #[test]
    fn parts_must_fit_each_other() {
        let corruptions: [fn(&mut Content); 12] = [
            |content| content.contexts.ends[0] = 2,
            |content| content.queries.ends = vec![1, 0],
            |content| content.words.truncate(2),
            |content| content.paragraphs.truncate(1),
            |content| content.paragraphs[1] = 1,
            |content| content.left_out[0] = 2,
            |content| content.spots[1].start = 2,
            |content| content.spots[1].answer = [2, 4],
            |content| content.spots[1].answer = [4, 3],
            |content| content.spots[1].answer = [3, 5],
            |content| content.contexts.values[2] = VOCABULARY as u32,
            |content| content.queries.values[0] = VOCABULARY as u32,
        ];
        for (number, corrupt) in corruptions.into_iter().enumerate() {
            let mut content = content();
            corrupt(&mut content);
            let read = decode(&encode(&KEY, &content), &KEY, VOCABULARY);
            assert_eq!(read, Err("its parts do not fit each other"), "{number}");
        }
    }

    #[test]
    fn any_damage_is_found() {
        let whole = encode(&KEY, &content());
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x10;
            assert!(decode(&bytes, &KEY, VOCABULARY).is_err(), "byte {place}");
        }
        for length in 0..whole.len() {
            assert!(decode(&whole[..length], &KEY, VOCABULARY).is_err(), "{length} bytes");
        }
        assert_eq!(decode(&[whole, vec![0]].concat(), &KEY, VOCABULARY), Err("it is too long"));
        let remainder = frame(&KEY, [&[], &[], &[], &[], &[], &[], &[0; SPOT_NUMBERS + 1], &[]]);
        assert_eq!(decode(&remainder, &KEY, VOCABULARY), Err("its last window is cut off"));
    }
}
