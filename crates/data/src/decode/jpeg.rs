use std::cell::Cell;
use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};

use zune_core::bytestream::{ZByteReaderTrait, ZCursor};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::{ColourMode, ImageFormat, ImageInfo, MAX_SIDE, check_dimensions};
use crate::DecodeError;

const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];

pub(super) fn decode(bytes: &[u8], pixels: &mut Vec<u8>) -> Result<ImageInfo, DecodeError> {
    let mut decoder = decoder(ZCursor::new(bytes), ColorSpace::RGB);
    decoder.decode_headers().map_err(|error| damaged(bytes, error))?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    check_dimensions(width as u64, height as u64)?;
    if !has_end_of_image(bytes) {
        let expected = "the end-of-image marker (FF D9)";
        return Err(DecodeError::Truncated { format: "JPEG", length: bytes.len(), expected });
    }
    let colours = decoder.input_colorspace().unwrap_or(ColorSpace::Unknown);
    let info = ImageInfo { width: width as u32, height: height as u32, format: ImageFormat::Jpeg, mode: mode(colours) };
    if colours == ColorSpace::CMYK && !has_adobe_marker(bytes) {
        decode_plain_cmyk(bytes, width * height, pixels)?;
    } else {
        pixels.resize(width * height * 3, 0);
        decoder.decode_into(pixels).map_err(|error| damaged(bytes, error))?;
    }
    Ok(info)
}

fn decoder<R: ZByteReaderTrait>(reader: R, colours: ColorSpace) -> JpegDecoder<R> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(MAX_SIDE as usize)
        .set_max_height(MAX_SIDE as usize)
        .jpeg_set_out_colorspace(colours);
    JpegDecoder::new_with_options(reader, options)
}

fn mode(colours: ColorSpace) -> ColourMode {
    match colours {
        ColorSpace::Luma => ColourMode::Grey,
        ColorSpace::CMYK | ColorSpace::YCCK => ColourMode::Cmyk,
        _ => ColourMode::Rgb,
    }
}

/// CMYK without the Adobe marker holds amounts of ink; with it, their complements, which the decoder assumes.
fn decode_plain_cmyk(bytes: &[u8], count: usize, pixels: &mut Vec<u8>) -> Result<(), DecodeError> {
    let mut inks = vec![0; count * 4];
    decoder(ZCursor::new(bytes), ColorSpace::CMYK).decode_into(&mut inks).map_err(|error| damaged(bytes, error))?;
    pixels.clear();
    for &[cyan, magenta, yellow, black] in inks.as_chunks().0 {
        pixels.extend([cyan, magenta, yellow].map(|ink| multiply(255 - ink, 255 - black)));
    }
    Ok(())
}

/// `a * b / 255`, rounded.
fn multiply(a: u8, b: u8) -> u8 {
    ((u32::from(a) * u32::from(b) + 127) / 255) as u8
}

fn has_end_of_image(bytes: &[u8]) -> bool {
    bytes.windows(2).rev().any(|pair| pair == END_OF_IMAGE)
}

/// Looks for an APP14 "Adobe" segment before the first scan.
fn has_adobe_marker(bytes: &[u8]) -> bool {
    const APP14: u8 = 0xEE;
    const START_OF_SCAN: u8 = 0xDA;
    let mut rest = &bytes[2..];
    while let [0xFF, marker, high, low, ..] = *rest {
        if marker == 0xFF {
            rest = &rest[1..];
            continue;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if marker == APP14 && rest[4..].starts_with(b"Adobe") {
            return true;
        }
        if marker == START_OF_SCAN || rest.len() < 2 + length {
            return false;
        }
        rest = &rest[2 + length..];
    }
    false
}

fn damaged(bytes: &[u8], error: DecodeErrors) -> DecodeError {
    let reason = error.to_string().replace('\n', " ").trim().trim_matches('"').to_owned();
    let offset = Some(offset_of_damage(bytes));
    DecodeError::Damaged { format: "JPEG", offset, reason, expected: "a baseline or progressive Huffman-coded JPEG" }
}

/// Decodes again through a reader that tells how far it was read.
fn offset_of_damage(bytes: &[u8]) -> u64 {
    let position = Cell::new(0);
    let mut decoder = decoder(Tracked { cursor: Cursor::new(bytes), position: &position }, ColorSpace::RGB);
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
