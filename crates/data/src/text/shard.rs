//! Files of tokens with the bounds of sentences and documents.
//!
//! All numbers are little endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `BSMRTOKS` |
//! | 4 | version, 1 |
//! | 4 | bytes of a token id, `W`: 2 or 4 |
//! | 32 | SHA-256 of the vocabulary |
//! | 3 x 8 | tokens `T`, sentences `S`, documents `D` |
//! | 3 x 4 | CRC-32C of each of the sections below |
//! | 4 | CRC-32C of all before |
//! | `T` x `W` | token ids |
//! | `S` x 4 | where each sentence ends, in tokens |
//! | `D` x 4 | where each document ends, in sentences |

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::positioned::read_at;
use crate::{DataError, FilePosition, NewFile};

const MAGIC: &[u8; 8] = b"BSMRTOKS";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 88;
const EXPECTED: &str = "a token shard of this version, as `data prepare text` writes it";
/// Tokens checked at a time.
const CHUNK: u32 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub token_bytes: u32,
    pub vocabulary: [u8; 32],
    pub tokens: u64,
    pub sentences: u64,
    pub documents: u64,
    /// CRC-32C of tokens, sentences and documents.
    pub checksums: [u32; 3],
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.token_bytes.to_le_bytes());
        bytes.extend(self.vocabulary);
        for count in [self.tokens, self.sentences, self.documents] {
            bytes.extend(count.to_le_bytes());
        }
        for checksum in self.checksums {
            bytes.extend(checksum.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Result<Self, &'static str> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[..8] != *MAGIC {
            return Err("not a token shard");
        }
        if crc32c::crc32c(&bytes[..84]) != word(84) {
            return Err("the header does not fit its checksum");
        }
        if word(8) != VERSION {
            return Err("of another version");
        }
        let vocabulary = bytes[16..48].try_into().expect("32 bytes");
        let checksums = [word(72), word(76), word(80)];
        let (tokens, sentences, documents) = (long(48), long(56), long(64));
        Ok(Self { token_bytes: word(12), vocabulary, tokens, sentences, documents, checksums })
    }

    /// Length of the file, or `None` if it is out of range.
    fn file_bytes(&self) -> Option<u64> {
        let fits = matches!(self.token_bytes, 2 | 4)
            && [self.tokens, self.sentences, self.documents].iter().all(|&count| count <= u32::MAX.into());
        fits.then(|| HEADER_BYTES + self.tokens * u64::from(self.token_bytes) + 4 * (self.sentences + self.documents))
    }
}

/// Writes a shard. It appears under its name when it is whole.
pub(crate) struct ShardWriter {
    path: PathBuf,
    file: NewFile,
    header: Header,
    sentence_ends: Vec<u32>,
    document_ends: Vec<u32>,
}

impl ShardWriter {
    /// For ids below `vocabulary_size` of the vocabulary of that hash.
    pub(super) fn create(path: &Path, vocabulary_size: usize, vocabulary: [u8; 32]) -> Result<Self, DataError> {
        let partial = path.with_extension("partial");
        let file = NewFile::create(path, &partial).map_err(DataError::writing(&partial, "create the file"))?;
        let token_bytes = if vocabulary_size <= 1 << 16 { 2 } else { 4 };
        let header = Header { token_bytes, vocabulary, tokens: 0, sentences: 0, documents: 0, checksums: [0; 3] };
        let mut writer =
            Self { path: path.to_owned(), file, header, sentence_ends: Vec::new(), document_ends: Vec::new() };
        writer.write(&[0; HEADER_BYTES as usize])?;
        Ok(writer)
    }

    /// Adds a document of sentences; those without tokens are left out, and so is a document without sentences.
    pub(super) fn add(&mut self, sentences: &[Vec<u32>]) -> Result<(), DataError> {
        for sentence in sentences.iter().filter(|sentence| !sentence.is_empty()) {
            let bytes = match self.header.token_bytes {
                2 => sentence.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect::<Vec<_>>(),
                _ => to_bytes(sentence),
            };
            self.header.checksums[0] = crc32c::crc32c_append(self.header.checksums[0], &bytes);
            self.header.tokens += sentence.len() as u64;
            let end = u32::try_from(self.header.tokens).map_err(|_| {
                DataError::layout(&self.path, "more than 2^32 tokens for one shard", "a larger number of shards")
            })?;
            self.sentence_ends.push(end);
            self.write(&bytes)?;
        }
        let sentences = self.sentence_ends.len() as u32;
        if self.document_ends.last().copied().unwrap_or(0) < sentences {
            self.document_ends.push(sentences);
        }
        Ok(())
    }

    /// Completes the file.
    pub(super) fn finish(mut self) -> Result<(), DataError> {
        let (sentences, documents) = (to_bytes(&self.sentence_ends), to_bytes(&self.document_ends));
        self.header.sentences = self.sentence_ends.len() as u64;
        self.header.documents = self.document_ends.len() as u64;
        self.header.checksums[1..].copy_from_slice(&[crc32c::crc32c(&sentences), crc32c::crc32c(&documents)]);
        self.write(&sentences)?;
        self.write(&documents)?;
        let header = self.header.encode();
        self.file.seek(SeekFrom::Start(0)).map_err(DataError::writing(self.file.beside(), "write the file"))?;
        self.write(&header)?;
        complete(self.file, &self.path)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(DataError::writing(self.file.beside(), "write the file"))
    }
}

/// Brings a file to the disk and gives it its name, `path`.
pub(crate) fn complete(mut file: NewFile, path: &Path) -> Result<(), DataError> {
    file.sync().map_err(DataError::writing(file.beside(), "write the file"))?;
    file.place().map(drop).map_err(DataError::writing(path, "rename the file to"))
}

fn to_bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A shard to read from. Bounds are in memory, tokens are read when they are asked for.
#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    file: File,
    header: Header,
    sentence_ends: Vec<u32>,
    document_ends: Vec<u32>,
}

impl Shard {
    /// Errors: a file that cannot be read, is no shard of the vocabulary, has another length than its header says, or
    /// whose bounds are damaged.
    pub(crate) fn open(path: &Path, vocabulary: [u8; 32]) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io(path, "open the file"))?;
        let bytes = file.metadata().map_err(DataError::io(path, "look at the file"))?.len();
        let mut header = [0; HEADER_BYTES as usize];
        if bytes < HEADER_BYTES {
            let problem = format!("the file ends at byte {bytes}, within the header");
            return Err(DataError::layout(path, problem, EXPECTED));
        }
        read_at(&file, &mut header, 0).map_err(DataError::io(path, "read the file"))?;
        let header = Header::decode(&header).map_err(|problem| DataError::layout(path, problem, EXPECTED))?;
        if header.vocabulary != vocabulary {
            return Err(DataError::layout(path, "made with another vocabulary", "the vocabulary of the data set"));
        }
        if header.file_bytes() != Some(bytes) {
            let expected =
                header.file_bytes().map_or_else(|| "sizes in range".into(), |bytes| format!("{bytes} bytes"));
            return Err(DataError::layout(path, format!("the file has {bytes} bytes"), expected));
        }
        let mut shard =
            Self { path: path.to_owned(), file, header, sentence_ends: Vec::new(), document_ends: Vec::new() };
        let sentences_at = HEADER_BYTES + header.tokens * u64::from(header.token_bytes);
        shard.sentence_ends = shard.bounds(sentences_at, header.sentences, header.tokens, 1)?;
        shard.document_ends =
            shard.bounds(sentences_at + 4 * header.sentences, header.documents, header.sentences, 2)?;
        Ok(shard)
    }

    /// A section of `count` bounds, which rise to `last`.
    fn bounds(&self, offset: u64, count: u64, last: u64, section: usize) -> Result<Vec<u32>, DataError> {
        let mut bytes = vec![0; 4 * count as usize];
        self.read(&mut bytes, offset)?;
        let bounds: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let rises = bounds.is_sorted_by(|a, b| a < b) && bounds.first() != Some(&0);
        let ends = bounds.last().copied().unwrap_or(0);
        if crc32c::crc32c(&bytes) != self.header.checksums[section] || !rises || u64::from(ends) != last {
            return Err(self.damaged(offset, ["tokens", "bounds of sentences", "bounds of documents"][section]));
        }
        Ok(bounds)
    }

    fn damaged(&self, offset: u64, what: &str) -> DataError {
        let problem = format!("the {what} that begin here do not fit their checksum");
        DataError::content(&self.path, FilePosition::Byte(offset), problem, "an undamaged token shard")
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), DataError> {
        read_at(&self.file, buffer, offset).map_err(DataError::io(&self.path, "read the file"))
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Where each document ends, in sentences.
    pub(crate) fn document_ends(&self) -> &[u32] {
        &self.document_ends
    }

    /// Where each sentence ends, in tokens.
    pub(crate) fn sentence_ends(&self) -> &[u32] {
        &self.sentence_ends
    }

    /// Appends the ids of a run of tokens.
    pub(crate) fn tokens(&self, run: Range<u32>, out: &mut Vec<u32>) -> Result<(), DataError> {
        self.decode(&self.token_bytes(run)?, out);
        Ok(())
    }

    fn token_bytes(&self, run: Range<u32>) -> Result<Vec<u8>, DataError> {
        let width = self.header.token_bytes as usize;
        let mut bytes = vec![0; run.len() * width];
        self.read(&mut bytes, HEADER_BYTES + u64::from(run.start) * width as u64)?;
        Ok(bytes)
    }

    fn decode(&self, bytes: &[u8], out: &mut Vec<u32>) {
        match self.header.token_bytes {
            2 => out.extend(bytes.as_chunks().0.iter().map(|&id| u32::from(u16::from_le_bytes(id)))),
            _ => out.extend(bytes.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id))),
        }
    }

    /// Reads all tokens, in runs of some length, and checks them.
    ///
    /// Errors: tokens that cannot be read, do not fit their checksum, or are not below `vocabulary_size`.
    pub(crate) fn scan(&self, vocabulary_size: usize, each: &mut dyn FnMut(&[u32])) -> Result<(), DataError> {
        let tokens = self.header.tokens as u32;
        let (mut checksum, mut ids) = (0, Vec::new());
        for start in (0..tokens).step_by(CHUNK as usize) {
            let bytes = self.token_bytes(start..tokens.min(start.saturating_add(CHUNK)))?;
            checksum = crc32c::crc32c_append(checksum, &bytes);
            ids.clear();
            self.decode(&bytes, &mut ids);
            if let Some(wrong) = ids.iter().position(|&id| id as usize >= vocabulary_size) {
                let place = HEADER_BYTES + (u64::from(start) + wrong as u64) * u64::from(self.header.token_bytes);
                let problem = format!("token id {}", ids[wrong]);
                let expected = format!("less than {vocabulary_size}, the size of the vocabulary");
                return Err(DataError::content(&self.path, FilePosition::Byte(place), problem, expected));
            }
            each(&ids);
        }
        match checksum == self.header.checksums[0] {
            true => Ok(()),
            false => Err(self.damaged(HEADER_BYTES, "tokens")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const VOCABULARY: [u8; 32] = [7; 32];

    fn written(vocabulary_size: usize) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let mut writer = ShardWriter::create(&path, vocabulary_size, VOCABULARY).unwrap();
        writer.add(&[vec![1, 2, 3], vec![], vec![4]]).unwrap();
        writer.add(&[vec![]]).unwrap();
        writer.add(&[vec![5, 60_000]]).unwrap();
        assert!(!path.exists(), "unfinished");
        writer.finish().unwrap();
        (folder, path)
    }

    fn open(path: &Path) -> Result<Shard, DataError> {
        Shard::open(path, VOCABULARY)
    }

    #[test]
    fn documents_come_back_in_both_widths() {
        for (size, width) in [(65_536, 2), (65_537, 4)] {
            let (_folder, path) = written(size);
            let shard = open(&path).unwrap();
            assert_eq!(shard.header().token_bytes, width);
            assert_eq!((shard.sentence_ends(), shard.document_ends()), (&[3, 4, 6][..], &[2, 3][..]));
            let mut ids = vec![9];
            shard.tokens(2..6, &mut ids).unwrap();
            assert_eq!(ids, [9, 3, 4, 5, 60_000]);
            let mut seen = Vec::new();
            shard.scan(size, &mut |ids| seen.extend_from_slice(ids)).unwrap();
            assert_eq!(seen, [1, 2, 3, 4, 5, 60_000]);
        }
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let (_folder, path) = written(65_536);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, bytes).unwrap();
            let result = open(&path).and_then(|shard| shard.scan(65_536, &mut |_| ()));
            let text = result.expect_err("damage").to_string();
            assert!(text.contains("a.tokens: "), "{text}");
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(open(&path).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let (_folder, path) = written(65_536);
        let text = Shard::open(&path, [8; 32]).unwrap_err().to_string();
        assert!(text.contains("made with another vocabulary"), "{text}");
        let text = open(&path).unwrap().scan(60_000, &mut |_| ()).unwrap_err().to_string();
        assert!(text.contains("byte 98: token id 60000; expected less than 60000"), "{text}");
        fs::write(&path, [b'x'; 200]).unwrap();
        assert!(open(&path).unwrap_err().to_string().contains("a.tokens: not a token shard"));
    }
}
