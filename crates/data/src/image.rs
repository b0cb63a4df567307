use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder, ImageResult};

use fast_image_resize::Resizer;

use crate::decode::exif::{Exif, decode_oriented};
use crate::decode::{decode_file, read_whole};
use crate::resize::resize_region;
use crate::{DataError, DecodeError, Region};

/// An RGB picture, `pixels` `[height, width, 3]`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Image {
    /// Columns of pixels.
    pub width: usize,
    /// Rows of pixels.
    pub height: usize,
    /// `[H, W, 3]`, row by row, 0 to 255.
    pub pixels: Vec<u8>,
}

/// How a picture is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// PNG, nothing lost.
    Png,
    /// With a quality of 1 to 100.
    Jpeg(u8),
}

impl FileFormat {
    /// Extension of file names, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg(_) => "jpg",
        }
    }
}

impl Image {
    /// A picture of one colour.
    pub fn filled(width: usize, height: usize, colour: [u8; 3]) -> Self {
        Self { width, height, pixels: colour.repeat(width * height) }
    }

    /// Reads and decodes a file as [`decode_rgb`](crate::decode_rgb) does.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let mut pixels = Vec::new();
        let info = decode_file(path, &mut Vec::new(), &mut pixels)?;
        Ok(Self { width: info.width as usize, height: info.height as usize, pixels })
    }

    /// Reads and decodes a file as [`Image::decode_oriented`] does.
    pub fn read_oriented(path: &Path, exif: Exif) -> Result<Self, DataError> {
        let mut file = Vec::new();
        read_whole(path, &mut file)?;
        Self::decode_oriented(&file, exif).map_err(|source| DataError::Image { path: path.to_owned(), source })
    }

    /// Decodes the content of a file as [`decode_rgb`](crate::decode_rgb) does, and turns the picture as `exif` asks.
    pub fn decode_oriented(file: &[u8], exif: Exif) -> Result<Self, DecodeError> {
        let mut pixels = Vec::new();
        let info = decode_oriented(file, &mut pixels, exif)?;
        Ok(Self { width: info.width as usize, height: info.height as usize, pixels })
    }

    /// The part in `region`, resized with an antialiased bilinear filter as Pillow's `crop` then `resize(BILINEAR)`.
    ///
    /// # Panics
    /// If the region is empty or leaves the picture, or the new size is zero.
    pub fn crop_resized(&self, region: Region, width: usize, height: usize) -> Self {
        let mut resized = Self::filled(width, height, [0; 3]);
        let target_size = [height as u32, width as u32];
        resize_region(&mut Resizer::new(), &self.pixels, self.size(), region, &mut resized.pixels, target_size);
        resized
    }

    pub(crate) fn size(&self) -> [u32; 2] {
        [self.height as u32, self.width as u32]
    }

    /// Copies `source` with its upper left corner at column `left` and row `top`.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn paste(&mut self, source: &[u8], source_width: usize, left: usize, top: usize) {
        for (y, row) in source.chunks_exact(source_width * 3).enumerate() {
            let start = ((top + y) * self.width + left) * 3;
            self.pixels[start..start + row.len()].copy_from_slice(row);
        }
    }

    /// Writes the picture to a file.
    pub fn write(&self, path: &Path, format: FileFormat) -> Result<(), DataError> {
        fs::write(path, self.encode(path, format)?).map_err(DataError::writing(path, "write the picture"))
    }

    /// The content of a file of the picture; `path` is named in errors.
    pub fn encode(&self, path: &Path, format: FileFormat) -> Result<Vec<u8>, DataError> {
        self.encoded(format)
            .map_err(|error| DataError::writing(path, "encode the picture")(std::io::Error::other(error)))
    }

    fn encoded(&self, format: FileFormat) -> ImageResult<Vec<u8>> {
        let mut bytes = Cursor::new(Vec::new());
        let (width, height, colour) = (self.width as u32, self.height as u32, ExtendedColorType::Rgb8);
        match format {
            FileFormat::Png => PngEncoder::new_with_quality(&mut bytes, CompressionType::Fast, FilterType::Adaptive)
                .write_image(&self.pixels, width, height, colour)?,
            FileFormat::Jpeg(quality) => JpegEncoder::new_with_quality(&mut bytes, quality.clamp(1, 100)).write_image(
                &self.pixels,
                width,
                height,
                colour,
            )?,
        }
        Ok(bytes.into_inner())
    }
}
