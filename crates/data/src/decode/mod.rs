//! Image files to RGB, the format decided by the content and never by the file's name.

pub(crate) mod exif;
pub(crate) mod jpeg;
mod png;
mod rare;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Serialize;

use crate::{DataError, DecodeError};

/// Longest side of an image that is accepted.
pub const MAX_SIDE: u32 = 32_768;
/// Most pixels of an image that is accepted.
pub const MAX_PIXELS: u64 = 100_000_000;

/// File formats that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// JPEG, baseline and progressive.
    Jpeg,
    /// PNG.
    Png,
    /// WebP, lossy and lossless.
    WebP,
    /// Windows bitmap.
    Bmp,
}

/// Endings of the names of image files, in lower case.
pub const IMAGE_ENDINGS: [&str; 5] = ["jpg", "jpeg", "png", "webp", "bmp"];

/// Whether a file is taken for an image among others, by its name in upper or lower case.
pub fn has_image_ending(path: &Path) -> bool {
    ImageFormat::of_ending(path).is_some()
}

impl ImageFormat {
    /// By the ending of a name, in upper or lower case.
    pub(crate) fn of_ending(path: &Path) -> Option<Self> {
        let ending = path.extension()?;
        let known = IMAGE_ENDINGS.iter().position(|known| ending.eq_ignore_ascii_case(known))?;
        [Self::Jpeg, Self::Jpeg, Self::Png, Self::WebP, Self::Bmp].get(known).copied()
    }

    /// Name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
        }
    }

    /// Name, as in `image/format` of records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Bmp => "bmp",
        }
    }
}

/// Colours as stored in a file, before conversion to RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ColourMode {
    /// One channel.
    Grey,
    /// One channel and opacity.
    GreyAlpha,
    /// Red, green and blue.
    Rgb,
    /// Red, green, blue and opacity.
    Rgba,
    /// Indices into a table of colours.
    Palette,
    /// Cyan, magenta, yellow and black.
    Cmyk,
}

/// What an image file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageInfo {
    /// Columns of pixels, as stored.
    pub width: u32,
    /// Rows of pixels, as stored.
    pub height: u32,
    /// Format of the file.
    pub format: ImageFormat,
    /// What a pixel is made of in the file.
    pub mode: ColourMode,
}

/// Decodes a JPEG, PNG, WebP (of an animation the first picture) or BMP file into `pixels` `[height, width, 3]`, resizing the vector.
///
/// Grey is repeated over the three channels, alpha is dropped, 16 bits become 8. CMYK and YCCK are converted, their inks
/// taken as stored inverted, as Adobe does. Colour profiles and EXIF orientation are not applied.
///
/// A truncated or damaged file is an error; `pixels` then holds nothing of use. JPEG has no checksums: damage that
/// happens to leave valid codes goes unnoticed, and so does a scan that is cut short but properly ended.
pub fn decode_rgb(bytes: &[u8], pixels: &mut Vec<u8>) -> Result<ImageInfo, DecodeError> {
    match detect(bytes)? {
        ImageFormat::Jpeg => jpeg::decode(bytes, pixels),
        ImageFormat::Png => png::decode(bytes, pixels),
        format @ (ImageFormat::WebP | ImageFormat::Bmp) => rare::decode(format, bytes, pixels),
    }
}

/// What an image file holds, without decoding its pixels.
///
/// # Errors
/// A file of another kind; a damaged head; a size outside the limits.
pub(crate) fn read_info(bytes: &[u8]) -> Result<ImageInfo, DecodeError> {
    match detect(bytes)? {
        ImageFormat::Jpeg => jpeg::info(bytes),
        ImageFormat::Png => png::info(bytes),
        format @ (ImageFormat::WebP | ImageFormat::Bmp) => rare::info(format, bytes),
    }
}

/// Reads the file at `path` into `file`.
pub(crate) fn read_whole(path: &Path, file: &mut Vec<u8>) -> Result<(), DataError> {
    file.clear();
    let read = File::open(path).and_then(|mut opened| opened.read_to_end(file));
    read.map(|_| ()).map_err(DataError::io(path, "read the file"))
}

/// Reads and decodes the file at `path` as [`decode_rgb`] does; `file` is a buffer for its bytes.
pub fn decode_file(path: &Path, file: &mut Vec<u8>, pixels: &mut Vec<u8>) -> Result<ImageInfo, DataError> {
    read_whole(path, file)?;
    decode_rgb(file, pixels).map_err(|source| DataError::Image { path: path.to_owned(), source })
}

pub(crate) fn detect(bytes: &[u8]) -> Result<ImageFormat, DecodeError> {
    if bytes.starts_with(&[0xFF, 0xD8, 0xFF]) {
        Ok(ImageFormat::Jpeg)
    } else if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Ok(ImageFormat::Png)
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Ok(ImageFormat::WebP)
    } else if bytes.starts_with(b"BM") {
        Ok(ImageFormat::Bmp)
    } else {
        Err(DecodeError::UnknownFormat { start: describe_start(bytes) })
    }
}

fn describe_start(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (0 bytes)".into();
    }
    let start: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02X}")).collect();
    start.join(" ")
}

fn check_dimensions(width: u64, height: u64) -> Result<(), DecodeError> {
    let side = 1..=u64::from(MAX_SIDE);
    if side.contains(&width) && side.contains(&height) && width * height <= MAX_PIXELS {
        return Ok(());
    }
    Err(DecodeError::Dimensions { width, height, max_side: MAX_SIDE, max_pixels: MAX_PIXELS })
}
