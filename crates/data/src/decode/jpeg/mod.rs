//! JPEG files: whole ones by `zune-jpeg`; parts of the usual ones by code of our own, which decodes no more than it needs to.

mod bits;
mod block;
mod colour;
#[cfg(test)]
mod encoder;
mod header;
mod huffman;
mod idct;
mod part;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};

use zune_core::bytestream::{ZByteReaderTrait, ZCursor};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

pub(crate) use self::header::Header;
pub(crate) use self::part::{PartBuffers, Shrink, decode_part};
use super::{ColourMode, ImageFormat, ImageInfo, MAX_SIDE, check_dimensions};
use crate::DecodeError;

const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];

pub(super) fn decode(bytes: &[u8], pixels: &mut Vec<u8>) -> Result<ImageInfo, DecodeError> {
    if !has_end_of_image(bytes) {
        let expected = "the end-of-image marker (FF D9)";
        return Err(DecodeError::Truncated { format: "JPEG", length: bytes.len(), expected });
    }
    let mut decoder = decoder(ZCursor::new(bytes));
    let info = head(bytes, &mut decoder)?;
    pixels.resize(info.width as usize * info.height as usize * 3, 0);
    decoder.decode_into(pixels).map_err(|error| damaged(bytes, error))?;
    Ok(info)
}

pub(super) fn info(bytes: &[u8]) -> Result<ImageInfo, DecodeError> {
    head(bytes, &mut decoder(ZCursor::new(bytes)))
}

fn head(bytes: &[u8], decoder: &mut JpegDecoder<ZCursor<&[u8]>>) -> Result<ImageInfo, DecodeError> {
    decoder.decode_headers().map_err(|error| damaged(bytes, error))?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    check_dimensions(width as u64, height as u64)?;
    let mode = mode(decoder.input_colorspace().unwrap_or(ColorSpace::Unknown));
    Ok(ImageInfo { width: width as u32, height: height as u32, format: ImageFormat::Jpeg, mode })
}

fn decoder<R: ZByteReaderTrait>(reader: R) -> JpegDecoder<R> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(MAX_SIDE as usize)
        .set_max_height(MAX_SIDE as usize)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(reader, options)
}

fn mode(colours: ColorSpace) -> ColourMode {
    match colours {
        ColorSpace::Luma => ColourMode::Grey,
        ColorSpace::CMYK | ColorSpace::YCCK => ColourMode::Cmyk,
        _ => ColourMode::Rgb,
    }
}

fn has_end_of_image(bytes: &[u8]) -> bool {
    bytes.windows(2).rev().any(|pair| pair == END_OF_IMAGE)
}

fn damaged(bytes: &[u8], error: DecodeErrors) -> DecodeError {
    let reason = error.to_string().replace('\n', " ").trim().trim_matches('"').to_owned();
    let offset = Some(offset_of_damage(bytes));
    DecodeError::Damaged { format: "JPEG", offset, reason, expected: "a baseline or progressive Huffman-coded JPEG" }
}

/// Decodes again through a reader that records how far it was read.
fn offset_of_damage(bytes: &[u8]) -> u64 {
    let position = Cell::new(0);
    let mut decoder = decoder(Tracked { cursor: Cursor::new(bytes), position: &position });
    if decoder.decode_headers().is_ok() {
        // The outcome is known to be an error; only the position is of interest.
        let _ = decoder.decode();
    }
    position.get()
}

struct Tracked<'a> {
    cursor: Cursor<&'a [u8]>,
    position: &'a Cell<u64>,
}

impl Tracked<'_> {
    fn note<T>(&self, result: T) -> T {
        self.position.set(self.cursor.position());
        result
    }
}

impl Read for Tracked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.cursor.read(buffer);
        self.note(result)
    }
}

impl BufRead for Tracked<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.cursor.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.cursor.consume(amount);
        self.note(());
    }
}

impl Seek for Tracked<'_> {
    fn seek(&mut self, target: SeekFrom) -> io::Result<u64> {
        let result = self.cursor.seek(target);
        self.note(result)
    }
}
