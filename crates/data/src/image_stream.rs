//! Files of pictures that follow each other in a stream, as `ffmpeg -f image2pipe` writes them.

use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use crate::decode::detect;
use crate::{DataError, DecodeError, Exif, Image, ImageFormat};

/// Longest file of a picture that is accepted, in bytes.
const MAX_BYTES: usize = 1 << 30;
/// Bytes that tell the formats apart.
const HEAD: usize = 8;
const START_OF_SCAN: u8 = 0xDA;
const END_OF_IMAGE: u8 = 0xD9;

/// JPEG and PNG files without anything between them. One is in memory at a time.
#[derive(Debug)]
pub struct ImageStream<R> {
    input: R,
    name: PathBuf,
    exif: Exif,
    /// Pictures that were begun.
    number: u64,
    /// The file of the present picture.
    file: Vec<u8>,
}

/// Why the file of a picture does not come to its end.
enum Flaw {
    Read(io::Error),
    Decode(DecodeError),
}

impl<R: BufRead> ImageStream<R> {
    /// A stream that errors call `name`, of pictures that are turned as `exif` asks.
    pub fn new(input: R, name: &Path, exif: Exif) -> Self {
        Self { input, name: name.to_owned(), exif, number: 0, file: Vec::new() }
    }

    /// What errors call the stream.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Reads the next picture, as [`Image::decode_oriented`] makes it; `None` at the end of the stream.
    ///
    /// # Errors
    /// A picture that is truncated, damaged or none, by its number from 1; no picture in the whole stream; a stream that cannot be read.
    pub fn next_image(&mut self) -> Result<Option<Image>, DataError> {
        self.file.clear();
        self.number += 1;
        let image = match self.read_file() {
            Ok(()) if self.file.is_empty() && self.number == 1 => {
                return Err(DataError::layout(&self.name, "no picture", "JPEG or PNG files one after another"));
            }
            Ok(()) if self.file.is_empty() => return Ok(None),
            Ok(()) => Image::decode_oriented(&self.file, self.exif),
            Err(Flaw::Decode(error)) => Err(error),
            Err(Flaw::Read(error)) => return Err(DataError::io(&self.name, "read the pictures")(error)),
        };
        let path = || PathBuf::from(format!("{}, frame {}", self.name.display(), self.number));
        image.map(Some).map_err(|source| DataError::Image { path: path(), source })
    }

    /// Reads one file; nothing at the end of the stream.
    fn read_file(&mut self) -> Result<(), Flaw> {
        // No picture is as short as its head is here: it has its end behind it.
        if self.read(HEAD)? == 0 {
            return Ok(());
        }
        match detect(&self.file).map_err(Flaw::Decode)? {
            ImageFormat::Jpeg => self.read_jpeg(),
            ImageFormat::Png => self.read_png(),
            format @ (ImageFormat::WebP | ImageFormat::Bmp) => {
                Err(damaged(format, 0, "a format that streams do not have; JPEG and PNG are allowed".to_owned()))
            }
        }
    }

    /// Follows the marker segments (ITU-T T.81, annex B), as thumbnails within them have ends of their own.
    fn read_jpeg(&mut self) -> Result<(), Flaw> {
        // The head may hold several short segments.
        let mut position = 2;
        loop {
            let marker = self.marker(&mut position)?;
            match marker {
                END_OF_IMAGE => return Ok(()),
                0x01 | 0xD0..=0xD7 => continue,
                _ => {}
            }
            self.have(position + 2, ImageFormat::Jpeg)?;
            let length = u16::from_be_bytes([self.file[position], self.file[position + 1]]);
            position += usize::from(length.max(2));
            self.have(position, ImageFormat::Jpeg)?;
            if marker == START_OF_SCAN {
                self.skip_scan(&mut position)?;
            }
        }
    }

    /// The marker at a position, which moves behind it and bytes that fill up.
    fn marker(&mut self, position: &mut usize) -> Result<u8, Flaw> {
        let start = *position;
        loop {
            self.have(*position + 1, ImageFormat::Jpeg)?;
            let byte = self.file[*position];
            *position += 1;
            match (byte, *position - start) {
                (0xFF, _) => {}
                (marker, 2..) => return Ok(marker),
                (other, _) => {
                    return Err(damaged(ImageFormat::Jpeg, start, format!("{other:02X} where a marker (FF) begins")));
                }
            }
        }
    }

    /// Moves to the first marker behind the data of a scan; those that restart the coding are part of the data.
    fn skip_scan(&mut self, position: &mut usize) -> Result<(), Flaw> {
        loop {
            let room = (MAX_BYTES - self.file.len()) as u64;
            if self.file.get(*position..).is_none_or(|rest| !rest.contains(&0xFF)) {
                (&mut self.input).take(room).read_until(0xFF, &mut self.file).map_err(Flaw::Read)?;
            }
            let found = self.file[*position..].iter().position(|&byte| byte == 0xFF);
            let marker = found.map_or(self.file.len(), |at| *position + at);
            self.have(marker + 2, ImageFormat::Jpeg)?;
            if !matches!(self.file[marker + 1], 0x00 | 0xD0..=0xD7) {
                *position = marker;
                return Ok(());
            }
            *position = marker + 2;
        }
    }

    /// Follows the chunks up to the last one, `IEND`.
    fn read_png(&mut self) -> Result<(), Flaw> {
        let mut position = HEAD;
        loop {
            self.have(position + 8, ImageFormat::Png)?;
            let (length, kind) = self.file[position..position + 8].split_at(4);
            let is_last = kind == b"IEND";
            position += u32::from_be_bytes(length.try_into().expect("four bytes")) as usize + 12;
            self.have(position, ImageFormat::Png)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Reads until the file has `length` bytes.
    fn have(&mut self, length: usize, format: ImageFormat) -> Result<(), Flaw> {
        if length > MAX_BYTES {
            return Err(damaged(format, self.file.len(), format!("a picture of more than {MAX_BYTES} bytes")));
        }
        let missing = length.saturating_sub(self.file.len());
        if missing > 0 && self.read(missing)? < missing {
            let is_jpeg = format == ImageFormat::Jpeg;
            let expected = if is_jpeg { "the end-of-image marker (FF D9)" } else { "the IEND chunk" };
            let (format, length) = (format.title(), self.file.len());
            return Err(Flaw::Decode(DecodeError::Truncated { format, length, expected }));
        }
        Ok(())
    }

    /// Reads up to `count` bytes; how many it were.
    fn read(&mut self, count: usize) -> Result<usize, Flaw> {
        (&mut self.input).take(count as u64).read_to_end(&mut self.file).map_err(Flaw::Read)
    }
}

fn damaged(format: ImageFormat, offset: usize, reason: String) -> Flaw {
    let (format, offset) = (format.title(), Some(offset as u64));
    Flaw::Decode(DecodeError::Damaged { format, offset, reason, expected: "whole files one after another" })
}
