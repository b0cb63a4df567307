//! Decoding and resizing against Pillow's results, made by `fixtures/make_fixtures.py`.

use std::fs;
use std::path::{Path, PathBuf};

use bessemer_data::{ColourMode, Image, ImageFormat, Region, ResizeCentreCrop, decode_rgb};
use serde::Deserialize;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn largest_difference(a: &Image, b: &Image) -> u8 {
    assert_eq!((a.width, a.height), (b.width, b.height));
    a.pixels.iter().zip(&b.pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

/// Decoders of JPEG may differ in rounding, more so where colours are upsampled.
#[test]
fn decodes_as_pillow() {
    use ColourMode::*;
    use ImageFormat::*;
    for (file, format, mode, tolerance) in [
        ("rgb_444.jpg", Jpeg, Rgb, 3),
        ("rgb_420.jpg", Jpeg, Rgb, 4),
        ("rgb_422.jpg", Jpeg, Rgb, 4),
        ("progressive.jpg", Jpeg, Rgb, 4),
        ("restarts.jpg", Jpeg, Rgb, 4),
        ("grey_jpeg.jpg", Jpeg, Grey, 1),
        ("cmyk_adobe.jpg", Jpeg, Cmyk, 2),
        ("cmyk_plain.jpg", Jpeg, Cmyk, 2),
        ("ycck.jpg", Jpeg, Cmyk, 4),
        ("png_named.jpg", Png, Rgb, 0),
        ("rgb.png", Png, Rgb, 0),
        ("rgba.png", Png, Rgba, 0),
        ("grey.png", Png, Grey, 0),
        ("grey_alpha.png", Png, GreyAlpha, 0),
        ("grey_16.png", Png, Grey, 0),
        ("one_bit.png", Png, Grey, 0),
        ("palette.png", Png, Palette, 0),
        ("webp_lossy.webp", WebP, Rgb, 1),
        ("webp_lossless.webp", WebP, Rgb, 0),
        ("webp_alpha.webp", WebP, Rgba, 0),
        ("bmp_rgb.bmp", Bmp, Rgb, 0),
        ("bmp_grey.bmp", Bmp, Rgb, 0),
        ("bmp_palette.bmp", Bmp, Rgb, 0),
    ] {
        let mut pixels = Vec::new();
        let path = fixture("decode").join(file);
        let info = decode_rgb(&fs::read(&path).unwrap(), &mut pixels).unwrap();
        assert_eq!((info.format, info.mode), (format, mode), "{file}");
        let decoded = Image { width: info.width as usize, height: info.height as usize, pixels };
        let expected = Image::read(&path.with_extension("expected.png")).unwrap();
        let difference = largest_difference(&decoded, &expected);
        assert!(difference <= tolerance, "{file}: off by {difference}, allowed is {tolerance}");
    }
}

#[derive(Deserialize)]
struct Case {
    kind: String,
    #[serde(default)]
    turned: bool,
    #[serde(rename = "box")]
    region: [u32; 4],
    #[serde(default)]
    short: u32,
    size: [u32; 2],
    file: String,
}

#[test]
fn resizes_as_pillow() {
    let source = Image::read(&fixture("resize/source.png")).unwrap();
    let turned = turned_left(&source);
    let cases: Vec<Case> = serde_json::from_slice(&fs::read(fixture("resize/cases.json")).unwrap()).unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let picture = if case.turned { &turned } else { &source };
        let [left, top, width, height] = case.region;
        let resized = match case.kind.as_str() {
            "crop" => {
                let region = Region { left, top, width, height };
                picture.crop_resized(region, case.size[0] as usize, case.size[1] as usize)
            }
            "centre" => ResizeCentreCrop::antialiased(case.short, case.size[0]).apply(picture),
            other => panic!("unknown case {other}"),
        };
        let expected = Image::read(&fixture("resize").join(&case.file)).unwrap();
        let difference = largest_difference(&resized, &expected);
        assert!(difference <= 1, "{}: off by {difference}", case.file);
    }
}

fn turned_left(picture: &Image) -> Image {
    let mut turned = Image::filled(picture.height, picture.width, [0; 3]);
    for y in 0..turned.height {
        for x in 0..turned.width {
            let source = (x * picture.width + picture.width - 1 - y) * 3;
            turned.pixels[(y * turned.width + x) * 3..][..3].copy_from_slice(&picture.pixels[source..source + 3]);
        }
    }
    turned
}
