//! The orientation in the EXIF block of a JPEG file.

use std::fmt;
use std::str::FromStr;

use image::metadata::Orientation;
use image::{DynamicImage, RgbImage};
use serde::{Deserialize, Serialize};

use super::{ImageInfo, decode_rgb};
use crate::{DataError, DecodeError};

const EXIF: &[u8] = b"Exif\0\0";
const APP1: u8 = 0xe1;
const START_OF_SCAN: u8 = 0xda;
const ORIENTATION: u32 = 0x0112;

/// What is done with the orientation that the EXIF block of a JPEG file states. Other formats have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exif {
    /// The image is turned and mirrored as the orientation says.
    Apply,
    /// The image stays as it is stored, as in the data sets of torchvision.
    Ignore,
}

impl Exif {
    /// Name in recipes and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Ignore => "ignore",
        }
    }

    /// What the identity of a data set ends with.
    pub(crate) fn identity(self) -> &'static str {
        match self {
            Self::Apply => ":upright",
            Self::Ignore => "",
        }
    }
}

impl fmt::Display for Exif {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Exif {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let found = [Self::Apply, Self::Ignore].into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| DataError::option("EXIF orientation", name, "apply or ignore"))
    }
}

/// Decodes a file as [`decode_rgb`] does, and turns the image as `exif` asks. Width and height are those of the result.
pub(crate) fn decode_oriented(file: &[u8], pixels: &mut Vec<u8>, exif: Exif) -> Result<ImageInfo, DecodeError> {
    let info = decode_rgb(file, pixels)?;
    let stated = match exif {
        Exif::Apply => orientation(file).and_then(Orientation::from_exif),
        Exif::Ignore => None,
    };
    let Some(orientation) = stated else { return Ok(info) };
    let stored = RgbImage::from_raw(info.width, info.height, std::mem::take(pixels));
    let mut image = DynamicImage::ImageRgb8(stored.expect("three bytes for each pixel"));
    image.apply_orientation(orientation);
    let (width, height) = (image.width(), image.height());
    *pixels = image.into_rgb8().into_raw();
    Ok(ImageInfo { width, height, ..info })
}

/// The orientation, 1 (upright) to 8, if the file states one (EXIF 2.3, section 4.6.4, tag 0x0112).
pub(crate) fn orientation(jpeg: &[u8]) -> Option<u8> {
    let mut rest = jpeg.strip_prefix(&[0xff, 0xd8])?;
    loop {
        let &[0xff, marker, high, low, ..] = rest else { return None };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let segment = rest.get(4..2 + len)?;
        if marker == APP1
            && let Some(block) = segment.strip_prefix(EXIF)
        {
            return in_block(block);
        }
        if marker == START_OF_SCAN {
            return None;
        }
        rest = &rest[2 + len..];
    }
}

/// Looks through the first directory of a TIFF block.
fn in_block(block: &[u8]) -> Option<u8> {
    let is_little = match block.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let number = |at: usize, bytes: usize| {
        let field = block.get(at..at.checked_add(bytes)?)?;
        let join = |value: u32, &byte: &u8| value << 8 | u32::from(byte);
        Some(if is_little { field.iter().rev().fold(0, join) } else { field.iter().fold(0, join) })
    };
    let directory = number(4, 4)? as usize;
    let entries = number(directory, 2)? as usize;
    let mut entries = (0..entries).map(|entry| directory + 2 + entry * 12);
    let entry = entries.find(|&at| number(at, 2) == Some(ORIENTATION))?;
    u8::try_from(number(entry + 8, 2)?).ok().filter(|found| (1..=8).contains(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jpeg(tiff: &[u8]) -> Vec<u8> {
        let other = [&[0xff, 0xe0, 0, 4, 1, 2][..]].concat();
        let exif = [&[0xff, APP1][..], &((tiff.len() + 8) as u16).to_be_bytes(), EXIF, tiff].concat();
        [&[0xff, 0xd8][..], &other, &exif, &[0xff, START_OF_SCAN, 0, 2]].concat()
    }

    #[test]
    fn orientations_of_both_byte_orders_are_found() {
        let little = b"II\x2a\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0\0\0\0\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation(&jpeg(little)), Some(6));
        assert_eq!(orientation(&jpeg(big)), Some(8));
    }

    #[test]
    fn files_that_are_cut_or_have_none_give_none() {
        let little = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let whole = jpeg(little);
        for end in 0..whole.len() - 8 {
            assert_eq!(orientation(&whole[..end]), None, "{end}");
        }
        assert_eq!(orientation(&jpeg(b"II\x2a\0\xff\xff\xff\xff")), None);
        assert_eq!(orientation(&jpeg(b"")), None);
        assert_eq!(orientation(&[0xff, 0xd8, 0xff, APP1, 0, 0, 0]), None, "a length that cannot be");
    }
}
