//! Files of TFRecords: each record is its length, a checksum of the length, the payload and a checksum of the payload.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | length `L`, little endian |
//! | 4 | masked CRC-32C of the length |
//! | `L` | payload |
//! | 4 | masked CRC-32C of the payload |

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::positioned::read_at;
use crate::{DataError, FilePosition};

const HEADER_BYTES: u64 = 12;
const FOOTER_BYTES: u64 = 4;
const WRONG_LENGTH: &str = "the length does not fit its checksum";
const ENDS_WITHIN: &str = "the file ends within the record";
const WRONG_PAYLOAD: &str = "the payload does not fit its checksum";

/// The record of a payload.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let (length_crc, payload_crc) = (masked_crc(&length).to_le_bytes(), masked_crc(payload).to_le_bytes());
    [&length[..], &length_crc, payload, &payload_crc].concat()
}

/// CRC-32C, rotated and shifted so that checksums of data with checksums inside stay good.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A file of records, any of which can be read.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: File,
    /// Where each record begins, and the end of the last one.
    offsets: Vec<u64>,
    hash: [u8; 32],
}

impl RecordFile {
    /// Finds the records; payloads are not read.
    ///
    /// Errors: a file that cannot be read, is compressed, or ends within a record; a length that does not fit its
    /// checksum.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io(path, "open the file"))?;
        let bytes = file.metadata().map_err(DataError::io(path, "look at the file"))?.len();
        let mut scan = Scan { path, file: &file, bytes, offsets: vec![0], hasher: Sha256::new() };
        while scan.offset() < bytes {
            scan.step()?;
        }
        let (offsets, hash) = (scan.offsets, scan.hasher.finalize().into());
        Ok(Self { path: path.to_owned(), file, offsets, hash })
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where record `index`, counted from 0, lies.
    pub fn place(&self, index: usize) -> FilePosition {
        FilePosition::Record { number: index + 1, byte: self.offsets[index] }
    }

    /// SHA-256 over length and stored checksum of every record: it changes when the content does.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// The payload of record `index`, counted from 0.
    ///
    /// Errors: a payload that cannot be read or does not fit its checksum.
    pub fn read(&self, index: usize) -> Result<Vec<u8>, DataError> {
        let (start, end) = (self.offsets[index], self.offsets[index + 1]);
        let mut payload = vec![0; (end - start - HEADER_BYTES) as usize];
        read_at(&self.file, &mut payload, start + HEADER_BYTES).map_err(DataError::io(&self.path, "read a record"))?;
        let crc = payload.split_off(payload.len() - FOOTER_BYTES as usize);
        if masked_crc(&payload).to_le_bytes() != crc[..] {
            return Err(DataError::content(&self.path, self.place(index), WRONG_PAYLOAD, "an undamaged record"));
        }
        Ok(payload)
    }
}

struct Scan<'a> {
    path: &'a Path,
    file: &'a File,
    bytes: u64,
    offsets: Vec<u64>,
    hasher: Sha256,
}

impl Scan<'_> {
    fn offset(&self) -> u64 {
        *self.offsets.last().expect("begins with an offset")
    }

    fn error(&self, problem: String, expected: &str) -> DataError {
        let place = FilePosition::Record { number: self.offsets.len(), byte: self.offset() };
        DataError::content(self.path, place, problem, expected)
    }

    /// Passes over a record.
    fn step(&mut self) -> Result<(), DataError> {
        let start = self.offset();
        let mut header = [0; HEADER_BYTES as usize];
        if start + HEADER_BYTES > self.bytes {
            return Err(self.truncated("12 bytes of a record's head"));
        }
        self.read(&mut header, start)?;
        if start == 0 && header.starts_with(&[0x1f, 0x8b]) {
            let expected = "records as they are, such as `bessemer data prepare instances` makes of compressed ones";
            return Err(self.error("the file is compressed with gzip".to_owned(), expected));
        }
        let Some(length) = payload_length(&header) else {
            return Err(self.error(WRONG_LENGTH.to_owned(), "an undamaged TFRecord file"));
        };
        let end = length.checked_add(start + HEADER_BYTES + FOOTER_BYTES).filter(|&end| end <= self.bytes);
        let Some(end) = end else {
            return Err(self.truncated(&format!("a payload of {length} bytes and its checksum")));
        };
        let mut footer = [0; FOOTER_BYTES as usize];
        self.read(&mut footer, end - FOOTER_BYTES)?;
        self.hasher.update(length.to_le_bytes());
        self.hasher.update(footer);
        self.offsets.push(end);
        Ok(())
    }

    fn truncated(&self, expected: &str) -> DataError {
        self.error(format!("the file ends at byte {}, within the record", self.bytes), expected)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), DataError> {
        read_at(self.file, buffer, offset).map_err(DataError::io(self.path, "read the file"))
    }
}

/// Records of a stream, one after the other.
pub(crate) struct RecordStream<'a, R> {
    path: &'a Path,
    reader: R,
    /// Of the next record, counted from 1.
    number: usize,
    /// Where the next record begins.
    byte: u64,
}

impl<'a, R: Read> RecordStream<'a, R> {
    /// Records of `reader`, which reads what is, or was compressed to, a file.
    pub(crate) fn new(path: &'a Path, reader: R) -> Self {
        Self { path, reader, number: 1, byte: 0 }
    }

    /// The next record and its place, `None` at the end.
    ///
    /// Errors: a stream that cannot be read or unpacked, or ends within a record; a record that does not fit its checksums.
    pub(crate) fn next(&mut self) -> Result<Option<(FilePosition, Vec<u8>)>, DataError> {
        let place = FilePosition::Record { number: self.number, byte: self.byte };
        let error = |problem: &str| DataError::content(self.path, place, problem, "undamaged TFRecords");
        let header = self.read(place, HEADER_BYTES)?;
        if header.is_empty() {
            return Ok(None);
        }
        let header = header[..].try_into().map_err(|_| error(ENDS_WITHIN))?;
        let length = payload_length(header).ok_or_else(|| error(WRONG_LENGTH))?;
        let bytes = length.saturating_add(FOOTER_BYTES);
        let mut payload = self.read(place, bytes)?;
        if payload.len() as u64 != bytes {
            return Err(error(ENDS_WITHIN));
        }
        let crc = payload.split_off(length as usize);
        if masked_crc(&payload).to_le_bytes() != crc[..] {
            return Err(error(WRONG_PAYLOAD));
        }
        self.number += 1;
        self.byte += HEADER_BYTES + bytes;
        Ok(Some((place, payload)))
    }

    /// The next bytes, less than `count` at the end of the stream.
    fn read(&mut self, place: FilePosition, count: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        match self.reader.by_ref().take(count).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            // What a decoder says of damaged data.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof
                ) =>
            {
                Err(DataError::content(
                    self.path,
                    place,
                    format!("cannot be unpacked: {error}"),
                    "an undamaged gzip file",
                ))
            }
            Err(error) => Err(DataError::io(self.path, "read the file")(error)),
        }
    }
}

/// The length that the head of a record says, where it fits its checksum.
fn payload_length(header: &[u8; HEADER_BYTES as usize]) -> Option<u64> {
    let (length, crc) = header.split_first_chunk::<8>().expect("longer");
    (masked_crc(length).to_le_bytes() == *crc).then(|| u64::from_le_bytes(*length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open(bytes: &[u8]) -> (tempfile::TempDir, Result<RecordFile, DataError>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        fs::write(&path, bytes).unwrap();
        let file = RecordFile::open(&path);
        (folder, file)
    }

    fn two_records() -> Vec<u8> {
        [frame(b"first"), frame(b"second one")].concat()
    }

    /// A record written by TensorFlow: the version record of an event file.
    #[test]
    fn framing_is_that_of_tensorflow() {
        let framed = frame(b"\x09\x00\x00\x80\x38\x68\x20\xd5\x41\x1a\x0dbrain.Event:2");
        assert_eq!(framed[..8], 24_u64.to_le_bytes());
        assert_eq!(framed[8..12], [0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(framed.len(), 8 + 4 + 24 + 4);
    }

    #[test]
    fn records_come_back_in_any_order() {
        let (_folder, file) = open(&two_records());
        let file = file.unwrap();
        assert_eq!(file.len(), 2);
        assert_eq!(file.read(1).unwrap(), b"second one");
        assert_eq!(file.read(0).unwrap(), b"first");
        assert!(open(b"").1.unwrap().is_empty());
    }

    #[test]
    fn damage_is_placed() {
        let good = two_records();
        let second = 8 + 4 + 5 + 4;
        let message = |bytes: &[u8]| open(bytes).1.unwrap_err().to_string();
        for cut in [second + 3, second + 13, good.len() - 1] {
            let text = message(&good[..cut]);
            let expected = format!("a.tfrecord: record 2 at byte {second}: the file ends at byte {cut}");
            assert!(text.contains(&expected), "{text}");
        }
        let mut bad_length = good.clone();
        bad_length[second] ^= 1;
        assert!(message(&bad_length).contains("record 2 at byte 21: the length does not fit its checksum"));
        assert!(message(b"\x1f\x8b\x08 and so on, compressed").contains("gzip"));
        let mut bad_payload = good.clone();
        bad_payload[second + 14] ^= 1;
        let (_folder, file) = open(&bad_payload);
        let file = file.unwrap();
        assert_eq!(file.read(0).unwrap(), b"first");
        let text = file.read(1).unwrap_err().to_string();
        assert!(text.contains("record 2 at byte 21: the payload does not fit its checksum"), "{text}");
    }

    #[test]
    fn the_hash_follows_the_content() {
        let hash = |bytes: &[u8]| open(bytes).1.unwrap().hash();
        assert_eq!(hash(&two_records()), hash(&two_records()));
        assert_ne!(hash(&two_records()), hash(&[frame(b"first"), frame(b"second 0ne")].concat()));
    }
}
