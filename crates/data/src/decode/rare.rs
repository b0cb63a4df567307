//! Formats that are read by the decoders of a library as they are: WebP and BMP.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::codecs::webp::WebPDecoder;
use image::{DynamicImage, ImageDecoder, ImageError};

use super::png::{limits, mode_of};
use super::{ImageFormat, ImageInfo, check_dimensions};
use crate::DecodeError;

pub(super) fn decode(format: ImageFormat, bytes: &[u8], pixels: &mut Vec<u8>) -> Result<ImageInfo, DecodeError> {
    let (info, decoder) = head(format, bytes)?;
    let image = DynamicImage::from_decoder(decoder).map_err(|error| damaged(format, &error))?;
    pixels.clear();
    pixels.extend_from_slice(image.into_rgb8().as_raw());
    Ok(info)
}

pub(super) fn info(format: ImageFormat, bytes: &[u8]) -> Result<ImageInfo, DecodeError> {
    head(format, bytes).map(|(info, _)| info)
}

fn head(format: ImageFormat, bytes: &[u8]) -> Result<(ImageInfo, Box<dyn ImageDecoder + '_>), DecodeError> {
    let damaged = |error: ImageError| damaged(format, &error);
    let file = Cursor::new(bytes);
    let mut decoder: Box<dyn ImageDecoder + '_> = match format {
        ImageFormat::WebP => Box::new(WebPDecoder::new(file).map_err(damaged)?),
        _ => Box::new(BmpDecoder::new(file).map_err(damaged)?),
    };
    let (width, height) = decoder.dimensions();
    check_dimensions(width.into(), height.into())?;
    decoder.set_limits(limits()).map_err(damaged)?;
    Ok((ImageInfo { width, height, format, mode: mode_of(decoder.color_type()) }, decoder))
}

fn damaged(format: ImageFormat, error: &ImageError) -> DecodeError {
    DecodeError::Damaged {
        format: format.title(),
        offset: None,
        reason: error.to_string(),
        expected: "a whole valid file",
    }
}
