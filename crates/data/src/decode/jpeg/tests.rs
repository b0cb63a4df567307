//! Parts of pictures against the whole ones as `zune-jpeg` decodes them.

use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use super::encoder::{Encoder, picture};
use super::*;
use crate::resize::Region;
use crate::{Philox, Purpose, RandomResizedCrop, Scratch, Transform};

/// Largest difference of a channel, and most that the mean over all may be.
const LARGEST: u8 = 2;
const MEAN: f64 = 0.3;

fn random(number: u64) -> Philox {
    Purpose::Synthetic.stream(7, 0, number)
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decode").join(name)).unwrap()
}

fn random_region([height, width]: [u32; 2], rng: &mut Philox) -> Region {
    let (columns, rows) = (1 + rng.below(width), 1 + rng.below(height));
    Region { left: rng.below(width - columns + 1), top: rng.below(height - rows + 1), width: columns, height: rows }
}

/// The pixels of a part that is as large as its region; `None` where it is left to the whole decoder.
fn part(bytes: &[u8], region: Region, buffers: &mut PartBuffers) -> Option<Vec<u8>> {
    let mut pixels = Vec::new();
    let part = decode_part(&Header::read(bytes)?, region, Shrink::By1, buffers, &mut pixels)?;
    assert_eq!(part, region);
    Some(pixels)
}

fn crop(pixels: &[u8], width: u32, region: Region) -> Vec<u8> {
    let rows = pixels.chunks_exact(width as usize * 3).skip(region.top as usize).take(region.height as usize);
    rows.flat_map(|row| &row[region.left as usize * 3..][..region.width as usize * 3]).copied().collect()
}

/// Largest and mean difference.
fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let sum: u64 = differences.clone().map(u64::from).sum();
    (differences.max().unwrap(), sum as f64 / a.len() as f64)
}

/// Compares the whole picture and some random parts of it; `false` if parts of it are not decoded.
fn agrees(name: &str, bytes: &[u8], rng: &mut Philox, buffers: &mut PartBuffers) -> bool {
    let mut pixels = Vec::new();
    let info = decode(bytes, &mut pixels).unwrap();
    let Some(header) = Header::read(bytes) else { return false };
    let size = [info.height, info.width];
    assert_eq!(header.size(), size);
    let regions = (0..5).map(|_| random_region(size, rng));
    for region in [Region::whole(info.width, info.height)].into_iter().chain(regions) {
        let found = part(bytes, region, buffers).unwrap_or_else(|| panic!("{name}, {region:?}: not decoded"));
        let (largest, mean) = difference(&found, &crop(&pixels, info.width, region));
        assert!(largest <= LARGEST && mean < MEAN, "{name}, {region:?}: off by {largest}, in the mean by {mean}");
        for shrink in [Shrink::By2, Shrink::By4, Shrink::By8] {
            let smaller = decode_part(&header, region, shrink, buffers, &mut Vec::new());
            let smaller = smaller.unwrap_or_else(|| panic!("{name}, {region:?}, {shrink:?}: not decoded"));
            let factor = shrink.factor();
            assert_eq!([smaller.left, smaller.top], [region.left / factor, region.top / factor]);
            let end = |start: u32, len: u32| (start + len).div_ceil(factor);
            assert_eq!(smaller.left + smaller.width, end(region.left, region.width));
            assert_eq!(smaller.top + smaller.height, end(region.top, region.height));
        }
    }
    true
}

#[test]
fn files_of_another_encoder_are_decoded() {
    let mut buffers = PartBuffers::default();
    for name in ["rgb_420.jpg", "rgb_422.jpg", "rgb_444.jpg", "restarts.jpg", "grey_jpeg.jpg"] {
        assert!(agrees(name, &fixture(name), &mut random(1), &mut buffers), "{name}");
    }
    for name in ["progressive.jpg", "cmyk_adobe.jpg", "cmyk_plain.jpg", "ycck.jpg", "rgb.png"] {
        assert!(Header::read(&fixture(name)).is_none(), "{name}");
    }
}

#[test]
fn all_samplings_sizes_and_restarts_are_decoded() {
    let (mut rng, mut buffers) = (random(2), PartBuffers::default());
    for number in 0..120 {
        let sampling = [Some([1, 1]), Some([2, 1]), Some([1, 2]), Some([2, 2]), None][number % 5];
        let size = [1 + rng.below(70), 1 + rng.below(70)];
        let restart_interval = if rng.chance(0.5) { 1 + rng.below(20) as usize } else { 0 };
        let encoder = Encoder { sampling, restart_interval, quality: 1 + rng.below(12) as i32, seed: number as u64 };
        let bytes = encoder.encode(&picture(size, &mut rng), size);
        assert!(agrees(&format!("{number}: {size:?} {encoder:?}"), &bytes, &mut rng, &mut buffers));
    }
}

/// Photos of the sample data beside the checkout.
fn photos(folders: &[&str]) -> Vec<PathBuf> {
    let mut photos = Vec::new();
    let mut folders: Vec<PathBuf> = folders
        .iter()
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name))
        .filter(|folder| folder.exists())
        .collect();
    if folders.is_empty() {
        stderr().write_all(b"skipped: there is no ../shared/data beside the checkout\n").unwrap();
    }
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("jpg") || ending == "JPEG") {
                photos.push(path);
            }
        }
    }
    photos
}

#[test]
fn photos_are_decoded_in_part() {
    let (mut rng, mut buffers) = (random(3), PartBuffers::default());
    let photos = photos(&["imagenet-samples", "coco", "imagenette224/val"]);
    for path in &photos {
        let name = path.display().to_string();
        assert!(agrees(&name, &fs::read(path).unwrap(), &mut rng, &mut buffers), "{name} is not decoded in part");
    }
}

#[test]
fn vectors_compute_what_arrays_do() {
    let mut rng = random(4);
    for range in [16, 256, 4096, 1 << 30] {
        for _ in 0..200 {
            let block = std::array::from_fn(|_| rng.below(2 * range) as i32 - range as i32);
            let expected = idct::portable(&block);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor was found to have these instructions.
                #[allow(unsafe_code)]
                let found = unsafe { idct::avx2(&block) };
                assert_eq!(found, expected);
            }
            let mut dc = [0; 64];
            dc[0] = block[0] % 20_000;
            assert_eq!(idct::portable(&dc), idct::flat(dc[0]));
        }
    }
}

/// The order of restart markers and the ends of intervals tell whether codes were read as they were written.
#[test]
fn doubtful_intervals_are_left_to_the_whole_decoder() {
    let is_decoded = |bytes: &[u8]| {
        let [height, width] = Header::read(bytes).unwrap().size();
        part(bytes, Region::whole(width, height), &mut PartBuffers::default()).is_some()
    };
    let original = fixture("restarts.jpg");
    assert!(is_decoded(&original));
    let marker = original.windows(2).position(|pair| pair == [0xff, 0xd0]).unwrap();
    for place in [marker, original.len() - END_OF_IMAGE.len()] {
        let mut longer = original.clone();
        longer.splice(place..place, [0x55, 0x55]);
        assert!(!is_decoded(&longer), "bytes inserted at {place}");
    }
    let mut other = original.clone();
    other[marker + 1] = 0xd1;
    assert!(!is_decoded(&other), "restart markers out of order");
    let mut unended = original.clone();
    unended.splice(original.len() - 2..original.len() - 2, [0xff, 0xfe, 0, 2]);
    assert!(!is_decoded(&unended), "a segment behind the scan");
}

/// Means of squares of the full transform, whose samples are rounded.
#[test]
fn reduced_transforms_are_means() {
    fn check<const N: usize>(block: &[i32; 64]) {
        let (full, reduced) = (idct::portable(block), idct::reduced::<N>(block));
        let width = 8 / N;
        for row in 0..N {
            for column in 0..N {
                let square = full[row * width..][..width].iter().flat_map(|row| &row[column * width..][..width]);
                let mean = square.map(|&sample| f64::from(sample)).sum::<f64>() / (width * width) as f64;
                let found = f64::from(reduced[row][column]);
                assert!((found - mean).abs() < 1.2, "{N}, {row}, {column}: {found} and not {mean}");
            }
        }
    }
    let mut rng = random(5);
    for _ in 0..200 {
        let mut block = std::array::from_fn(|_| rng.below(30) as i32 - 15);
        block[0] = rng.below(800) as i32 - 400;
        check::<4>(&block);
        check::<2>(&block);
    }
}

/// Damage is left to the whole decoder, or makes no difference to it.
#[test]
fn damaged_files_are_judged_as_before() {
    let (mut rng, mut buffers) = (random(6), PartBuffers::default());
    let names = ["rgb_420.jpg", "rgb_444.jpg", "rgb_422.jpg", "restarts.jpg", "grey_jpeg.jpg"];
    let mut decoded = 0;
    for name in names {
        let original = fixture(name);
        for number in 0..400 {
            let mut bytes = original.clone();
            match number % 4 {
                0 => bytes.truncate(rng.below(bytes.len() as u32) as usize),
                1 => {
                    bytes.truncate(rng.below(bytes.len() as u32) as usize);
                    bytes.extend(END_OF_IMAGE);
                }
                _ => {
                    for _ in 0..=rng.below(3) {
                        let place = rng.below(bytes.len() as u32) as usize;
                        bytes[place] ^= 1 << rng.below(8);
                    }
                }
            }
            let Some(header) = Header::read(&bytes) else { continue };
            let [height, width] = header.size();
            // A size that was damaged.
            if width * height > 1 << 20 {
                continue;
            }
            for shrink in [Shrink::By1, Shrink::By2, Shrink::By4, Shrink::By8] {
                let region = random_region([height, width], &mut rng);
                let _ = decode_part(&header, region, shrink, &mut buffers, &mut Vec::new());
            }
            let Some(found) = part(&bytes, Region::whole(width, height), &mut buffers) else { continue };
            let mut pixels = Vec::new();
            decode(&bytes, &mut pixels).unwrap_or_else(|error| panic!("{name}, {number}: decoded, but {error}"));
            let (largest, mean) = difference(&found, &pixels);
            assert!(largest <= LARGEST && mean < MEAN, "{name}, {number}: off by {largest}, in the mean by {mean}");
            decoded += 1;
        }
    }
    assert!(decoded > 100, "{decoded}");
}

/// A sample as it is loaded, and the next random number.
fn sample(file: &[u8], crop: RandomResizedCrop, seed: u64, scratch: &mut Scratch) -> (Vec<u8>, u32) {
    scratch.file.clear();
    scratch.file.extend(file);
    let (mut rng, mut out) = (random(seed), vec![0; (crop.size * crop.size * 3) as usize]);
    Transform::Train(crop).draw_file(scratch, &[], crate::Exif::Ignore, &mut rng, &mut out).unwrap();
    (out, rng.next_u32())
}

/// A file of the same pixels that is decoded as a whole.
fn bitmap(file: &[u8]) -> (Vec<u8>, [u32; 2]) {
    let (mut pixels, mut bitmap) = (Vec::new(), Vec::new());
    let info = decode(file, &mut pixels).unwrap();
    let colours = image::ExtendedColorType::Rgb8;
    image::codecs::bmp::BmpEncoder::new(&mut bitmap).encode(&pixels, info.width, info.height, colours).unwrap();
    (bitmap, [info.height, info.width])
}

/// How far samples are off that are made from smaller pictures, by the factor.
#[derive(Default)]
struct Errors {
    count: usize,
    sum: f64,
    squares: f64,
}

impl Errors {
    fn add(&mut self, a: &[u8], b: &[u8]) {
        let differences = || a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b)));
        self.count += a.len();
        self.sum += differences().sum::<f64>();
        self.squares += differences().map(|difference| difference * difference).sum::<f64>();
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Peak signal-to-noise ratio in dB.
    fn psnr(&self) -> f64 {
        10.0 * (255.0 * 255.0 * self.count as f64 / self.squares).log10()
    }
}

/// Samples are the same crops, mirrored or not, as of a whole picture: equal where they are decoded at full scale, and close where they
/// are not.
#[test]
fn samples_are_those_of_whole_pictures() {
    let mut scratch = Scratch::default();
    let mut errors: [Errors; 4] = Default::default();
    let mut files: Vec<Vec<u8>> =
        ["rgb_420.jpg", "rgb_422.jpg", "rgb_444.jpg", "restarts.jpg", "grey_jpeg.jpg", "progressive.jpg"]
            .map(fixture)
            .into();
    let photos = photos(&["imagenet-samples"]);
    files.extend(photos.iter().map(|path| fs::read(path).unwrap()));
    for (seed, file) in (0..).zip(&files) {
        let (bitmap, [height, width]) = bitmap(file);
        for size in [8, 28, 56, 100, 224] {
            let crop = RandomResizedCrop { scaled_decode: true, ..RandomResizedCrop::imagenet(size) };
            let region = crop.draw_region(width, height, &[], &mut random(seed));
            let (found, expected) = (sample(file, crop, seed, &mut scratch), sample(&bitmap, crop, seed, &mut scratch));
            assert_eq!(found.1, expected.1, "{seed}: random numbers");
            let factor = (region.width.min(region.height) / size).clamp(1, 8).ilog2() as usize;
            if factor > 0 && Header::read(file).is_some() {
                errors[factor].add(&found.0, &expected.0);
            }
            let at_full_scale = sample(file, RandomResizedCrop { scaled_decode: false, ..crop }, seed, &mut scratch);
            assert_eq!(at_full_scale.1, expected.1, "{seed}: random numbers");
            if factor == 0 {
                assert!(at_full_scale.0 == found.0, "{seed}, {size}");
            }
            let (largest, mean) = difference(&at_full_scale.0, &expected.0);
            assert!(largest <= LARGEST && mean < MEAN, "{seed}, {size}: off by {largest}, in the mean by {mean}");
        }
    }
    // The few fixtures alone are noisier than photos.
    let (largest, least) = if photos.is_empty() { (5.0, 32.0) } else { (2.5, 36.0) };
    for (factor, errors) in errors.iter().enumerate().filter(|(_, errors)| errors.count > 0) {
        let (mean, psnr) = (errors.mean(), errors.psnr());
        eprintln!("at 1/{}: {mean:.2} in the mean, {psnr:.1} dB", 1 << factor);
        assert!(mean < largest && psnr > least, "at 1/{}: {mean:.2} in the mean, {psnr:.1} dB", 1 << factor);
    }
}
