//! Pictures as a person has them: turned by their EXIF orientation, and one after another in a stream.

use bessemer_data::{
    ClassFolder, DataError, Dataset, Exif, FileFormat, Image, ImageStream, Purpose, ResizeCentreCrop, Scratch, Split,
    Transform,
};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// A picture whose pixels tell where they are.
fn picture(width: usize, height: usize) -> Image {
    let mut picture = Image::filled(width, height, [0; 3]);
    for (index, pixel) in picture.pixels.chunks_exact_mut(3).enumerate() {
        let (x, y) = (index % width, index / width);
        pixel.copy_from_slice(&[(x * 200 / width) as u8, (y * 200 / height) as u8, 100]);
    }
    picture
}

/// `picture` as a JPEG that is stored in one of the 8 orientations: where its first row and its first column are in the picture
/// (EXIF 2.3, section 4.6.4).
fn stored(picture: &Image, orientation: u8) -> Vec<u8> {
    let (width, height) = (picture.width, picture.height);
    let is_turned = (5..=8).contains(&orientation);
    let (columns, rows) = if is_turned { (height, width) } else { (width, height) };
    // Rows from the bottom, or of turned pictures from the right; columns from the right, or of turned ones from the bottom.
    let rows_from_end = [3, 4, 6, 7].contains(&orientation);
    let columns_from_end = [2, 3, 7, 8].contains(&orientation);
    let mut stored = Image::filled(columns, rows, [0; 3]);
    for row in 0..rows {
        for column in 0..columns {
            let down = if rows_from_end { rows - 1 - row } else { row };
            let across = if columns_from_end { columns - 1 - column } else { column };
            let (x, y) = if is_turned { (down, across) } else { (across, down) };
            let from = &picture.pixels[(y * width + x) * 3..][..3];
            stored.pixels[(row * columns + column) * 3..][..3].copy_from_slice(from);
        }
    }
    let jpeg = stored.encode(Path::new("a.jpg"), FileFormat::Jpeg(95)).unwrap();
    let mut tiff = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    tiff[18] = orientation;
    let exif = [&[0xff, 0xe1][..], &(tiff.len() as u16 + 8).to_be_bytes(), b"Exif\0\0", &tiff].concat();
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

/// Mean difference of the pixels of two pictures of one size.
fn difference(a: &Image, b: &Image) -> f64 {
    assert_eq!((a.width, a.height), (b.width, b.height));
    let sum: u64 = a.pixels.iter().zip(&b.pixels).map(|(&a, &b)| u64::from(a.abs_diff(b))).sum();
    sum as f64 / a.pixels.len() as f64
}

#[test]
fn all_orientations_are_upright() {
    let picture = picture(48, 32);
    for orientation in 1..=8 {
        let upright = Image::decode_oriented(&stored(&picture, orientation), Exif::Apply).unwrap();
        let distance = difference(&upright, &picture);
        assert!(distance < 3.0, "{orientation}: {distance}");
    }
    for orientation in [0, 9] {
        let as_stored = Image::decode_oriented(&stored(&picture, orientation), Exif::Apply).unwrap();
        assert!(difference(&as_stored, &picture) < 3.0, "{orientation} is no orientation");
    }
}

#[test]
fn data_sets_ignore_the_orientation_unless_it_is_to_be_applied() {
    let (root, file) = (tempfile::tempdir().unwrap(), stored(&picture(32, 32), 6));
    for split in ["train", "val"] {
        fs::create_dir_all(root.path().join(split).join("a")).unwrap();
        fs::write(root.path().join(split).join("a/1.jpg"), &file).unwrap();
    }
    let transform = Transform::Eval(ResizeCentreCrop::antialiased(32, 32));
    let set = |exif| ClassFolder::open(root.path(), Split::Val, transform).unwrap().oriented(exif);
    let load = |exif| {
        let mut image = Image::filled(32, 32, [0; 3]);
        let mut rng = Purpose::Augment.stream(0, 0, 0);
        set(exif).load(0, &mut rng, &mut Scratch::default(), &mut image.pixels).unwrap();
        image
    };
    assert!(load(Exif::Apply) == Image::decode_oriented(&file, Exif::Apply).unwrap());
    assert!(load(Exif::Ignore) == Image::decode_oriented(&file, Exif::Ignore).unwrap());
    assert!(difference(&load(Exif::Apply), &load(Exif::Ignore)) > 20.0);
    let unasked = ClassFolder::open(root.path(), Split::Val, transform).unwrap().identity();
    assert!(set(Exif::Ignore).identity() == unasked && set(Exif::Apply).identity() != unasked);
}

/// Gives a byte at a time, as a slow pipe may.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(1);
        self.0.read(&mut buffer[..count])
    }
}

/// The pictures of a stream, and its error.
fn read(bytes: &[u8]) -> (Vec<Image>, Option<DataError>) {
    let mut stream = ImageStream::new(io::BufReader::with_capacity(1, Slow(bytes)), Path::new("camera"), Exif::Apply);
    let mut images = Vec::new();
    loop {
        match stream.next_image() {
            Ok(Some(image)) => images.push(image),
            Ok(None) => return (images, None),
            Err(error) => return (images, Some(error)),
        }
    }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decode").join(name)).unwrap()
}

#[test]
fn streams_are_cut_into_pictures() {
    let names = ["rgb.png", "rgb_420.jpg", "restarts.jpg", "progressive.jpg", "palette.png", "grey_jpeg.jpg"];
    let mut files: Vec<Vec<u8>> = names.map(fixture).into();
    // A JPEG within the first segment, as thumbnails are.
    let (file, thumbnail) = (stored(&picture(40, 24), 6), fixture("grey_jpeg.jpg"));
    let block = [&[0xff, 0xe2][..], &(thumbnail.len() as u16 + 2).to_be_bytes(), &thumbnail].concat();
    files.insert(2, [&file[..2], &block, &file[2..]].concat());
    let (images, error) = read(&files.concat());
    assert!(error.is_none(), "{error:?}");
    let expected: Vec<Image> = files.iter().map(|file| Image::decode_oriented(file, Exif::Apply).unwrap()).collect();
    assert!(images == expected, "{} of {} pictures", images.len(), files.len());
}

#[test]
fn errors_name_the_frame_after_those_before_it() {
    let (jpeg, png) = (fixture("rgb_420.jpg"), fixture("rgb.png"));
    let says = |bytes: &[u8], count: usize, parts: &[&str]| {
        let (images, error) = read(bytes);
        let error = error.map_or_else(String::new, |error| error.to_string());
        assert_eq!(images.len(), count, "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    for cut in [1, 2, 5, 9, 20, jpeg.len() / 2, jpeg.len() - 1] {
        let expected =
            if cut < 3 { "not an image: the file starts with FF" } else { "truncated JPEG: the file ends at" };
        says(&[&jpeg[..], &png, &jpeg[..cut]].concat(), 2, &["camera, frame 3: ", expected]);
    }
    for cut in [7, 8, 30, png.len() - 1] {
        let expected = if cut < 8 { "not an image" } else { "truncated PNG: the file ends at" };
        says(&[&jpeg[..], &png[..cut]].concat(), 1, &["camera, frame 2: ", expected]);
    }
    says(b"", 0, &["camera: no picture; expected JPEG or PNG files one after another"]);
    says(b"Content-Type: image/jpeg\r\n", 0, &["camera, frame 1: not an image: the file starts with 43 6F"]);
    says(&[&jpeg[..], b"--boundary\r\n", &jpeg].concat(), 1, &["camera, frame 2: not an image"]);
    // The second segment begins behind the first, whose length is at byte 4.
    let (mut damaged, second) = (jpeg.clone(), 4 + usize::from(u16::from_be_bytes([jpeg[4], jpeg[5]])));
    damaged[second] = 7;
    let expected = format!("damaged JPEG near byte {second}: 07 where a marker (FF) begins");
    says(&[&jpeg[..], &damaged].concat(), 1, &["camera, frame 2: ", &expected]);
    says(&[&png[..8], &[0xff; 8]].concat(), 0, &["camera, frame 1: damaged PNG", "more than 1073741824 bytes"]);
}
