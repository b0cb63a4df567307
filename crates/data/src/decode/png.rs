use std::io::Cursor;

use image::codecs::png::PngDecoder;
use image::{ColorType, DynamicImage, ExtendedColorType, ImageDecoder, ImageError, Limits};

use super::{ColourMode, ImageFormat, ImageInfo, MAX_PIXELS, MAX_SIDE, check_dimensions};
use crate::DecodeError;

const HEADER_END: usize = 26;
const COLOUR_TYPE: usize = 25;
const PALETTE: u8 = 3;

pub(super) fn decode(bytes: &[u8], pixels: &mut Vec<u8>) -> Result<ImageInfo, DecodeError> {
    let (info, decoder) = head(bytes)?;
    let image = DynamicImage::from_decoder(decoder).map_err(|error| damaged(bytes, error))?;
    pixels.clear();
    pixels.extend_from_slice(image.into_rgb8().as_raw());
    Ok(info)
}

pub(super) fn info(bytes: &[u8]) -> Result<ImageInfo, DecodeError> {
    head(bytes).map(|(info, _)| info)
}

type Decoder<'a> = PngDecoder<Cursor<&'a [u8]>>;

fn head(bytes: &[u8]) -> Result<(ImageInfo, Decoder<'_>), DecodeError> {
    let Some(header) = bytes.get(..HEADER_END) else {
        return Err(DecodeError::Truncated { format: "PNG", length: bytes.len(), expected: "the image header (IHDR)" });
    };
    let (width, height) = (be_u32(&header[16..20]), be_u32(&header[20..24]));
    check_dimensions(width.into(), height.into())?;
    let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits()).map_err(|error| damaged(bytes, error))?;
    let mode = if header[COLOUR_TYPE] == PALETTE { ColourMode::Palette } else { mode(&decoder) };
    Ok((ImageInfo { width, height, format: ImageFormat::Png, mode }, decoder))
}

fn be_u32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

pub(super) fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_PIXELS * 8);
    limits
}

fn mode(decoder: &PngDecoder<Cursor<&[u8]>>) -> ColourMode {
    if matches!(decoder.original_color_type(), ExtendedColorType::L1 | ExtendedColorType::L2 | ExtendedColorType::L4) {
        return ColourMode::Grey;
    }
    mode_of(decoder.color_type())
}

pub(super) fn mode_of(colours: ColorType) -> ColourMode {
    match colours {
        ColorType::L8 | ColorType::L16 => ColourMode::Grey,
        ColorType::La8 | ColorType::La16 => ColourMode::GreyAlpha,
        ColorType::Rgba8 | ColorType::Rgba16 | ColorType::Rgba32F => ColourMode::Rgba,
        _ => ColourMode::Rgb,
    }
}

fn damaged(bytes: &[u8], error: ImageError) -> DecodeError {
    if !has_iend(bytes) {
        let expected = "the end chunk (IEND)";
        return DecodeError::Truncated { format: "PNG", length: bytes.len(), expected };
    }
    DecodeError::Damaged { format: "PNG", offset: None, reason: error.to_string(), expected: "valid PNG chunks" }
}

/// Whether the end chunk is there; other bytes may follow it.
fn has_iend(bytes: &[u8]) -> bool {
    bytes.windows(4).rev().any(|name| name == b"IEND")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileFormat, Image};
    use std::path::Path;

    #[test]
    fn what_has_no_end_chunk_is_truncated() {
        let mut file = Image::filled(4, 4, [255, 0, 0]).encode(Path::new("red.png"), FileFormat::Png).unwrap();
        let end = file.len() - 8;
        let attempt = |bytes: &[u8]| decode(bytes, &mut Vec::new());
        assert!(matches!(attempt(&file[..end]), Err(DecodeError::Truncated { .. })));
        let header_crc = 29;
        file[header_crc] ^= 1;
        file.extend(b"what another program appended");
        assert!(matches!(attempt(&file), Err(DecodeError::Damaged { .. })));
    }
}
