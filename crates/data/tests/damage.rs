//! Truncated, damaged and hostile files are errors that say where and why; none makes the decoder panic.

use std::fs;
use std::path::Path;

use bessemer_data::{DecodeError, Image, Purpose, decode_rgb};

const FILES: [&str; 8] = [
    "rgb_420.jpg",
    "progressive.jpg",
    "restarts.jpg",
    "grey_jpeg.jpg",
    "cmyk_adobe.jpg",
    "rgb.png",
    "palette.png",
    "grey_16.png",
];

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decode").join(name)).unwrap()
}

fn decode(bytes: &[u8]) -> Result<(), DecodeError> {
    decode_rgb(bytes, &mut Vec::new()).map(|_| ())
}

#[test]
fn every_truncation_is_an_error() {
    for name in FILES {
        let bytes = fixture(name);
        for length in (0..bytes.len() - 8).step_by(7) {
            assert!(decode(&bytes[..length]).is_err(), "{name} cut to {length} of {} bytes", bytes.len());
        }
    }
}

/// The decoder must not make up the part of the picture that follows damage.
#[test]
fn impossible_codes_in_a_scan_are_errors() {
    for name in ["rgb_420.jpg", "restarts.jpg", "grey_jpeg.jpg", "cmyk_adobe.jpg"] {
        let mut bytes = fixture(name);
        let scan = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
        let middle = (scan + bytes.len()) / 2;
        let all_ones = [0xFF, 0x00].repeat(20);
        bytes[middle..middle + 40].copy_from_slice(&all_ones);
        let error = decode(&bytes).expect_err(name).to_string();
        let offset = error.strip_prefix("damaged JPEG near byte ").and_then(|rest| rest.split(':').next());
        let offset: usize = offset.unwrap_or_else(|| panic!("{name}: {error}")).parse().unwrap();
        assert!((middle..middle + 60).contains(&offset), "{name}: damaged at {middle}, but {error}");
    }
}

#[test]
fn no_damage_makes_the_decoder_panic() {
    for (number, name) in FILES.iter().enumerate() {
        let original = fixture(name);
        let mut rng = Purpose::Synthetic.stream(1, 0, number as u64);
        for _ in 0..300 {
            let mut bytes = original.clone();
            for _ in 0..=rng.below(4) {
                let place = rng.below(bytes.len() as u32) as usize;
                bytes[place] = rng.next_u32() as u8;
            }
            // Damage may go unnoticed; what matters is that it is survived.
            let _ = decode(&bytes);
        }
    }
}

#[test]
fn messages_tell_what_was_expected() {
    let jpeg = fixture("rgb_420.jpg");
    let message = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    assert_eq!(
        message(&jpeg[..1000]),
        "truncated JPEG: the file ends at byte 1000; expected the end-of-image marker (FF D9) before its end"
    );
    let mut bad_table = jpeg.clone();
    let table = jpeg.windows(2).position(|pair| pair == [0xFF, 0xC4]).unwrap();
    bad_table[table + 5..table + 21].fill(0xFF);
    let text = message(&bad_table);
    assert!(text.starts_with(&format!("damaged JPEG near byte {}: ", table + 21)), "{text}");

    let png = fixture("rgb.png");
    assert!(message(&png[..3000]).starts_with("truncated PNG: the file ends at byte 3000"));
    let mut bad_png = png.clone();
    bad_png[3000] ^= 0xFF;
    assert!(message(&bad_png).starts_with("damaged PNG: "));

    assert_eq!(
        message(b""),
        "not an image: the file starts with nothing (0 bytes); expected JPEG (FF D8 FF), PNG (89 50 4E 47), WebP (RIFF....WEBP) or BMP (BM)"
    );
    assert!(message(b"GIF89a\x01\x00\x01").starts_with("not an image: the file starts with 47 49 46 38 39 61 01 00;"));
}

#[test]
fn hostile_dimensions_are_refused_before_memory_is_taken() {
    let mut jpeg = fixture("rgb_420.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0x7F, 0xFF, 0x7F, 0xFF]);
    assert!(
        decode(&jpeg).unwrap_err().to_string().starts_with("the image is 32767x32767; expected sides of 1 to 32768")
    );
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF]);
    assert!(decode(&jpeg).is_err());

    let mut png = fixture("rgb.png");
    png[16..24].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF, 0x7F, 0xFF, 0xFF, 0xFF]);
    assert!(matches!(decode(&png), Err(DecodeError::Dimensions { .. })));
    png[16..24].fill(0);
    assert!(matches!(decode(&png), Err(DecodeError::Dimensions { width: 0, .. })));
}

#[test]
fn the_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.jpg");
    fs::write(&path, b"hello").unwrap();
    let message = Image::read(&path).unwrap_err().to_string();
    assert!(message.contains("broken.jpg: not an image: the file starts with 68 65 6C 6C 6F;"), "{message}");
    let missing = Image::read(&folder.path().join("missing.jpg")).unwrap_err().to_string();
    assert!(missing.contains("missing.jpg: cannot read the file: "), "{missing}");
}
