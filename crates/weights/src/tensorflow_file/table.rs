//! The sorted table of keys and values that an index is: blocks of entries with shared prefixes, an index of the blocks, a footer.
//!
//! A block is its entries, the offsets at which keys are whole, and their number; behind it lie the kind of its compression (one byte)
//! and a checksum of both. The footer holds the places of two blocks, of which the second is the index, and a magic number. The
//! format is that of LevelDB (`table_format.md` there).

use bessemer_data::tfrecord::masked_crc;
use std::borrow::Cow;

const FOOTER_BYTES: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// The kind of compression and the checksum.
const TRAILER_BYTES: usize = 5;
/// What a compressed block may become.
const MAX_BLOCK_BYTES: usize = 1 << 26;
const MAX_KEY_BYTES: usize = 1 << 12;
const MAX_VALUE_BYTES: usize = 1 << 16;
/// Keys of a table together.
const MAX_KEYS_BYTES: usize = 1 << 26;
/// Of all blocks together.
const MAX_ENTRIES: usize = 1 << 20;

/// Calls `visit` with each key and value, in the order of the keys.
///
/// # Errors
/// A table that is truncated, contradictory, not in order or beyond the limits above, in words; what `visit` says.
pub(super) fn read_table(
    bytes: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    if bytes.len() < FOOTER_BYTES || !bytes.ends_with(&MAGIC.to_le_bytes()) {
        return Err(
            "no index of a TensorFlow checkpoint, or truncated: it does not end with the magic number".to_owned()
        );
    }
    let (blocks, footer) = bytes.split_at(bytes.len() - FOOTER_BYTES);
    let mut footer = Reader(footer);
    handle(&mut footer).ok_or("its footer is damaged")?;
    let index = handle(&mut footer).ok_or("its footer is damaged")?;
    let index = block(blocks, index).map_err(|reason| format!("its index of blocks {reason}"))?;
    let (mut last, mut keys_bytes, mut count, mut end) = (None::<Vec<u8>>, 0, 0, 0);
    entries(&index, |_, value| {
        let (offset, size) = handle(&mut Reader(value)).ok_or("the place of a block is damaged")?;
        if offset < end {
            return Err(format!("its block at byte {offset} begins within another one"));
        }
        let content = block(blocks, (offset, size)).map_err(|reason| format!("its block at byte {offset} {reason}"))?;
        end = offset + size;
        entries(&content, |key, value| {
            if last.as_deref().is_some_and(|last| last >= key) {
                return Err("its keys are not in order".to_owned());
            }
            (keys_bytes, count) = (keys_bytes + key.len(), count + 1);
            if keys_bytes > MAX_KEYS_BYTES || count > MAX_ENTRIES {
                return Err(format!("it has more than {MAX_ENTRIES} entries, or {MAX_KEYS_BYTES} bytes of keys"));
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            visit(key, value)
        })
    })
}

/// Bytes that are still to be read.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for place in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                return None;
            }
            value |= bits << (7 * place);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    pub(super) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Offset and size of a block, without what lies behind it.
fn handle(reader: &mut Reader<'_>) -> Option<(usize, usize)> {
    Some((reader.size()?, reader.size()?))
}

/// The content of a block, after checking its checksum.
fn block(blocks: &[u8], (offset, size): (usize, usize)) -> Result<Cow<'_, [u8]>, String> {
    let end = size.checked_add(TRAILER_BYTES).and_then(|size| offset.checked_add(size));
    let Some(whole) = end.and_then(|end| blocks.get(offset..end)) else {
        return Err(format!(
            "(offset {offset}, {size} bytes) does not lie within the {} bytes of blocks",
            blocks.len()
        ));
    };
    let (checked, crc) = whole.split_at(size + 1);
    let (found, stated) = (masked_crc(checked), Reader(crc).word().ok_or("is truncated")?);
    if found != stated {
        return Err(format!("has the checksum {found:08x} and should have {stated:08x}"));
    }
    let content = &checked[..size];
    match checked[size] {
        0 => Ok(Cow::Borrowed(content)),
        1 => {
            let length = snap::raw::decompress_len(content).map_err(|error| format!("is damaged: {error}"))?;
            if length > MAX_BLOCK_BYTES {
                return Err(format!("has {length} bytes without its compression, at most {MAX_BLOCK_BYTES} are read"));
            }
            let content = snap::raw::Decoder::new().decompress_vec(content);
            content.map(Cow::Owned).map_err(|error| format!("is damaged: {error}"))
        }
        kind => Err(format!("is compressed in the way {kind}; 0 (not) and 1 (Snappy) are read")),
    }
}

/// The entries of a block.
fn entries(block: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), String>) -> Result<(), String> {
    let restarts = block.split_last_chunk::<4>().and_then(|(rest, count)| {
        let bytes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(4)?;
        rest.len().checked_sub(bytes)
    });
    let mut reader = Reader(&block[..restarts.ok_or("a block is too short for what it says")?]);
    let mut key = Vec::new();
    while !reader.0.is_empty() {
        let value = entry(&mut reader, &mut key).ok_or("an entry of a block is damaged")?;
        if key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
            let (key, value) = (key.len(), value.len());
            return Err(format!(
                "an entry has a key of {key} and a value of {value} bytes, at most {MAX_KEY_BYTES} and {MAX_VALUE_BYTES} are read"
            ));
        }
        visit(&key, value)?;
    }
    Ok(())
}

/// Reads an entry: turns the last key into the next one, and returns the value.
fn entry<'a>(reader: &mut Reader<'a>, key: &mut Vec<u8>) -> Option<&'a [u8]> {
    let [shared, own, size] = [reader.size()?, reader.size()?, reader.size()?];
    if shared > key.len() {
        return None;
    }
    key.truncate(shared);
    key.extend_from_slice(reader.take(own)?);
    reader.take(size)
}
