//! From a decoded picture to a sample of fixed size.

use fast_image_resize::CropBox;
use serde::{Deserialize, Serialize};

use crate::decode::exif::decode_oriented;
use crate::decode::jpeg::{Header, Shrink, decode_part};
use crate::placement::{Resampling, ResizeBuffers, Shown};
use crate::resize::Region;
use crate::{DataError, DecodeError, Exif, Image, Philox, Placement, Scratch, Stage};

const CROP_ATTEMPTS: usize = 10;
/// Those of TensorFlow's image pipelines.
const TENSORFLOW_ATTEMPTS: usize = 100;
/// The least part of one of the objects that a crop of TensorFlow's shows, whatever areas are asked for.
const LEAST_SHOWN: f64 = 0.1;

/// Sides `[x1, y1, x2, y2]` of a box around an object as shares of the picture, 0 to 1.
pub type ShareBox = [f32; 4];

/// How a decoded picture becomes a sample `[size, size, 3]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Transform {
    /// For training: a random part, mirrored at random.
    Train(RandomResizedCrop),
    /// For evaluation: the middle.
    Eval(ResizeCentreCrop),
}

/// Random crop, resized, with a random horizontal flip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomResizedCrop {
    /// Height and width of the sample.
    pub size: u32,
    /// Range of the crop's area as a fraction of the picture's.
    pub scale: (f64, f64),
    /// Range of the crop's width over its height.
    pub ratio: (f64, f64),
    /// How area and ratio are drawn.
    pub draw: CropDraw,
    /// How pixels are computed.
    pub resampling: Resampling,
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Whether JPEG files are decoded at a smaller scale where the crop has two or more pixels, along both axes, for each one of the
    /// sample: the means of squares of 2, 4 or 8 pixels.
    pub scaled_decode: bool,
}

/// How the area and the ratio of a random crop are drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropDraw {
    /// As torchvision's `RandomResizedCrop`: ten tries to draw an area and a ratio (uniform in its logarithm) that fit, then the
    /// largest centre crop within the allowed ratios.
    #[default]
    Torch,
    /// As TensorFlow's `sample_distorted_bounding_box`, whose crops show at least a tenth of one of the objects, or of the whole image where
    /// no object is known: a hundred tries to draw a ratio and then a height (both uniform) that fit, then the whole image.
    Tensorflow,
}

/// Resize of the short side, then a crop of the centre.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeCentreCrop {
    /// How pixels are computed.
    pub resampling: Resampling,
    /// Length of the short side after resizing, at least `size`.
    pub resize: u32,
    /// Height and width of the sample.
    pub size: u32,
}

impl RandomResizedCrop {
    /// The usual settings for ImageNet: area 0.08 to 1, ratio 3/4 to 4/3, flip with probability 1/2.
    pub fn imagenet(size: u32) -> Self {
        let (draw, resampling) = (CropDraw::Torch, Resampling::Antialias);
        Self {
            size,
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            draw,
            resampling,
            flip: 0.5,
            scaled_decode: false,
        }
    }

    /// Draws a crop of a picture of the given size, in which these objects are known; [`CropDraw::Torch`] does not ask for them.
    pub fn draw_region(&self, width: u32, height: u32, objects: &[ShareBox], rng: &mut Philox) -> Region {
        match self.draw {
            CropDraw::Torch => self.torch_region(width, height, rng),
            CropDraw::Tensorflow => {
                let whole = Region::whole(width, height);
                let mut regions: Vec<Region> = objects.iter().map(|object| whole.share(object)).collect();
                if objects.is_empty() {
                    regions.push(whole);
                }
                let mut tries = (0..TENSORFLOW_ATTEMPTS).filter_map(|_| self.tensorflow_region(width, height, rng));
                tries.find(|crop| shows_enough(*crop, &regions)).unwrap_or(whole)
            }
        }
    }

    /// One try; `None` where what is drawn does not fit.
    fn tensorflow_region(&self, width: u32, height: u32, rng: &mut Philox) -> Option<Region> {
        let ratio = rng.uniform(self.ratio.0, self.ratio.1);
        let area = f64::from(width) * f64::from(height);
        let (least, most) = (self.scale.0 * area, self.scale.1 * area);
        let rows_of = |area: f64| (area / ratio).sqrt().round_ties_even();
        let columns_of = |rows: f64| (rows * ratio).round_ties_even();
        let mut highest = rows_of(most);
        if columns_of(highest) > f64::from(width) {
            // The most rows whose columns round to the width of the picture.
            highest = ((f64::from(width) + 0.5 - 1e-7) / ratio).floor();
        }
        let highest = highest.min(f64::from(height));
        let lowest = rows_of(least).min(highest);
        let mut rows = lowest;
        if lowest < highest {
            rows += f64::from(rng.below((highest - lowest) as u32 + 1));
        }
        // Rounding may leave the range of areas by a row.
        let area_of = |rows: f64| rows * columns_of(rows);
        if area_of(rows) < least {
            rows += 1.0;
        }
        if area_of(rows) > most {
            rows -= 1.0;
        }
        let (crop_width, crop_height) = (columns_of(rows) as u32, rows as u32);
        let fits = (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height);
        if !fits || !(least..=most).contains(&area_of(rows)) {
            return None;
        }
        let mut start = |crop: u32, side: u32| if crop < side { rng.below(side - crop) } else { 0 };
        let (top, left) = (start(crop_height, height), start(crop_width, width));
        Some(Region { left, top, width: crop_width, height: crop_height })
    }

    fn torch_region(&self, width: u32, height: u32, rng: &mut Philox) -> Region {
        let area = f64::from(width) * f64::from(height);
        let log_ratio = (self.ratio.0.ln(), self.ratio.1.ln());
        for _ in 0..CROP_ATTEMPTS {
            let crop_area = area * rng.uniform(self.scale.0, self.scale.1);
            let ratio = rng.uniform(log_ratio.0, log_ratio.1).exp();
            let crop_width = (crop_area * ratio).sqrt().round_ties_even() as u32;
            let crop_height = (crop_area / ratio).sqrt().round_ties_even() as u32;
            if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
                let top = rng.below(height - crop_height + 1);
                let left = rng.below(width - crop_width + 1);
                return Region { left, top, width: crop_width, height: crop_height };
            }
        }
        self.centre_region(width, height)
    }

    /// How much smaller a crop can be decoded and still have a pixel for each one of the sample, along both axes.
    fn shrink(&self, region: Region) -> Shrink {
        if !self.scaled_decode {
            return Shrink::By1;
        }
        let fits = |shrink: &Shrink| region.width.min(region.height) >= self.size.saturating_mul(shrink.factor());
        [Shrink::By8, Shrink::By4, Shrink::By2].into_iter().find(fits).unwrap_or(Shrink::By1)
    }

    fn centre_region(&self, width: u32, height: u32) -> Region {
        let ratio = f64::from(width) / f64::from(height);
        let (mut crop_width, mut crop_height) = (width, height);
        if ratio < self.ratio.0 {
            crop_height = (f64::from(width) / self.ratio.0).round_ties_even() as u32;
        } else if ratio > self.ratio.1 {
            crop_width = (f64::from(height) * self.ratio.1).round_ties_even() as u32;
        }
        let (crop_width, crop_height) = (crop_width.clamp(1, width), crop_height.clamp(1, height));
        let (left, top) = ((width - crop_width) / 2, (height - crop_height) / 2);
        Region { left, top, width: crop_width, height: crop_height }
    }
}

impl ResizeCentreCrop {
    /// Short side to 256/224 of `size`, as 256 for 224.
    pub fn imagenet(size: u32) -> Self {
        Self::antialiased((u64::from(size) * 256 / 224) as u32, size)
    }

    /// Over all pixels that a pixel of the result covers.
    pub const fn antialiased(resize: u32, size: u32) -> Self {
        Self { resampling: Resampling::Antialias, resize, size }
    }

    /// The sample made of a picture, as for evaluation.
    pub fn apply(&self, picture: &Image) -> Image {
        let size = self.size as usize;
        let mut sample = Image::filled(size, size, [0; 3]);
        let mut buffers = ResizeBuffers::default();
        self.place(picture.size()).draw(&picture.pixels, picture.size(), &mut buffers, &mut sample.pixels);
        sample
    }

    fn place(&self, [height, width]: [u32; 2]) -> Placement {
        let shown = Shown::Window(self.window(width, height));
        filled(shown, self.size, false, self.resampling)
    }

    /// Size `[height, width]` of a picture after resizing; the long side is rounded down.
    fn resized(&self, width: u32, height: u32) -> [u64; 2] {
        let short = u64::from(self.resize);
        let long_side = |short_side: u32, long_side: u32| short * u64::from(long_side) / u64::from(short_side);
        match width <= height {
            true => [long_side(width, height), short],
            false => [short, long_side(height, width)],
        }
    }

    /// The part of a picture that the sample shows, so that only that is resized.
    fn window(&self, width: u32, height: u32) -> CropBox {
        let [resized_height, resized_width] = self.resized(width, height);
        let (left, width) = self.span(width, resized_width);
        let (top, height) = self.span(height, resized_height);
        CropBox { left, top, width, height }
    }

    /// Start and length, in pixels of the picture, of the centre `size` pixels of a side that is resized.
    fn span(&self, side: u32, resized: u64) -> (f64, f64) {
        let margin = (resized as f64 - f64::from(self.size)) / 2.0;
        let margin = match self.resampling {
            // The form of TensorFlow 1 comes with its crop.
            Resampling::Legacy => margin.floor(),
            _ => margin.round_ties_even(),
        };
        let scale = f64::from(side) / resized as f64;
        let start = margin * scale;
        (start, (f64::from(self.size) * scale).min(f64::from(side) - start))
    }
}

impl Transform {
    /// Height and width of the samples.
    pub fn size(&self) -> u32 {
        match self {
            Self::Train(crop) => crop.size,
            Self::Eval(crop) => crop.size,
        }
    }

    /// Checks every setting against its range.
    pub fn check(&self) -> Result<(), DataError> {
        match self {
            Self::Train(crop) => check_train(crop),
            Self::Eval(crop) => check_eval(crop),
        }
    }

    /// Draws how a picture of `[height, width]` with known objects is placed.
    fn place(&self, [height, width]: [u32; 2], objects: &[ShareBox], rng: &mut Philox) -> Placement {
        match self {
            Self::Train(crop) => {
                let shown = Shown::Region(crop.draw_region(width, height, objects, rng));
                let flipped = rng.chance(crop.flip);
                filled(shown, crop.size, flipped, crop.resampling)
            }
            Self::Eval(crop) => crop.place([height, width]),
        }
    }

    /// Decodes the file in a worker's buffers, turned as `exif` asks, and draws a part of it into `out` `[height, width, 3]`. The boxes of
    /// `objects` are those of the picture as it is stored, and are not asked for where it may be turned.
    pub(crate) fn draw_file(
        &self,
        scratch: &mut Scratch,
        objects: &[ShareBox],
        exif: Exif,
        rng: &mut Philox,
        out: &mut [u8],
    ) -> Result<(), DecodeError> {
        let objects = if exif == Exif::Ignore { objects } else { &[] };
        // A part is decoded as it is stored.
        let part = if exif == Exif::Ignore { self.decode_crop(scratch, objects, rng) } else { None };
        let (placement, size) = match part {
            Some(part) => part,
            None => {
                let info = decode_oriented(&scratch.file, &mut scratch.pixels, exif)?;
                let size = [info.height, info.width];
                (self.place(size, objects, rng), size)
            }
        };
        scratch.clock.end(Stage::Decode);
        placement.draw(&scratch.pixels, size, &mut scratch.resize, out);
        scratch.clock.end(Stage::Augment);
        Ok(())
    }

    /// Draws a part of the picture of `[height, width]` in a worker's buffer of pixels into `out` `[height, width, 3]`.
    pub(crate) fn draw_pixels(&self, size: [u32; 2], scratch: &mut Scratch, rng: &mut Philox, out: &mut [u8]) {
        self.place(size, &[], rng).draw(&scratch.pixels, size, &mut scratch.resize, out);
        scratch.clock.end(Stage::Augment);
    }

    /// Decodes the part of a file that a random crop shows, and returns how that part is placed, and its height and width.
    ///
    /// `None`, with no random number drawn, if the file must be decoded as a whole.
    fn decode_crop(
        &self,
        scratch: &mut Scratch,
        objects: &[ShareBox],
        rng: &mut Philox,
    ) -> Option<(Placement, [u32; 2])> {
        let Self::Train(crop) = self else { return None };
        let header = Header::read(&scratch.file)?;
        let mut drawn = rng.clone();
        let placement = self.place(header.size(), objects, &mut drawn);
        let Shown::Region(region) = placement.shown else { return None };
        let shrink = crop.shrink(region);
        let part = decode_part(&header, region, shrink, &mut scratch.part, &mut scratch.pixels)?;
        *rng = drawn;
        Some((placement.of_part(region, part, shrink.factor()), [part.height, part.width]))
    }
}

/// Whether a crop shows enough of one of the objects that have pixels.
fn shows_enough(crop: Region, objects: &[Region]) -> bool {
    let shown = |object: &Region| crop.overlap(object) as f64 >= LEAST_SHOWN * object.area() as f64;
    objects.iter().any(|object| object.area() > 0 && shown(object))
}

/// A part of an image that fills a square canvas.
fn filled(shown: Shown, side: u32, flipped: bool, resampling: Resampling) -> Placement {
    let size = [side; 2];
    Placement { shown, size, flipped, canvas: size, resampling, box_limit: size }
}

fn check_train(crop: &RandomResizedCrop) -> Result<(), DataError> {
    check_size(crop.size)?;
    let (low, high) = crop.scale;
    if !(low > 0.0 && low <= high && high <= 1.0) {
        let expected = "two rising fractions above 0 and up to 1";
        return Err(DataError::option("crop scale", format!("{low}..{high}"), expected));
    }
    let (low, high) = crop.ratio;
    if !(low > 0.0 && low <= high && high.is_finite()) {
        return Err(DataError::option("crop ratio", format!("{low}..{high}"), "two rising numbers above 0"));
    }
    check_probability("flip probability", crop.flip)
}

fn check_eval(crop: &ResizeCentreCrop) -> Result<(), DataError> {
    check_size(crop.size)?;
    if crop.resize < crop.size || crop.resize > MAX_SAMPLE_SIDE {
        let expected = format!("{} to {MAX_SAMPLE_SIDE}", crop.size);
        return Err(DataError::option("resize", crop.resize, expected));
    }
    Ok(())
}

/// Longest side of a sample.
pub(crate) const MAX_SAMPLE_SIDE: u32 = 4096;

pub(crate) fn check_size(size: u32) -> Result<(), DataError> {
    if (1..=MAX_SAMPLE_SIDE).contains(&size) {
        return Ok(());
    }
    Err(DataError::option("image size", size, format!("1 to {MAX_SAMPLE_SIDE}")))
}

pub(crate) fn check_probability(name: &'static str, probability: f64) -> Result<(), DataError> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(());
    }
    Err(DataError::option(name, probability, "0 to 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    fn rng() -> Philox {
        Purpose::Augment.stream(3, 0, 0)
    }

    #[test]
    fn crops_stay_inside_and_fill_the_ranges() {
        let crop = RandomResizedCrop::imagenet(224);
        let mut rng = rng();
        let (mut smallest, mut largest) = (1.0f64, 0.0f64);
        for _ in 0..2_000 {
            let region = crop.draw_region(500, 375, &[], &mut rng);
            assert!(region.left + region.width <= 500 && region.top + region.height <= 375);
            let ratio = f64::from(region.width) / f64::from(region.height);
            assert!((0.74..1.35).contains(&ratio), "{ratio}");
            let area = f64::from(region.width * region.height) / (500.0 * 375.0);
            smallest = smallest.min(area);
            largest = largest.max(area);
        }
        assert!((0.075..0.1).contains(&smallest), "{smallest}");
        assert!((0.9..=1.0).contains(&largest), "{largest}");
    }

    #[test]
    fn narrow_pictures_fall_back_to_the_centre() {
        let crop = RandomResizedCrop { scale: (1.0, 1.0), ..RandomResizedCrop::imagenet(8) };
        let wide = crop.draw_region(1000, 30, &[], &mut rng());
        assert_eq!(wide, Region { left: 480, top: 0, width: 40, height: 30 });
        let tall = crop.draw_region(30, 1000, &[], &mut rng());
        assert_eq!(tall, Region { left: 0, top: 480, width: 30, height: 40 });
        let near_square = RandomResizedCrop { ratio: (0.1, 10.0), ..crop };
        assert_eq!(near_square.centre_region(40, 30), Region::whole(40, 30));
    }

    /// Means over 20,000 crops that TensorFlow drew.
    #[derive(Debug, Deserialize)]
    struct Crops {
        size: [u32; 2],
        objects: Vec<ShareBox>,
        least_area: f64,
        area: f64,
        rows: f64,
        columns: f64,
        top: f64,
        left: f64,
    }

    #[test]
    fn crops_are_distributed_as_those_of_tensorflow() {
        let cases: Vec<Crops> = serde_json::from_str(include_str!("../tests/fixtures/resize/crops.json")).unwrap();
        let (scale, ratio) = ((0.05, 1.0), (0.75, 1.33));
        let crop = RandomResizedCrop { scale, ratio, draw: CropDraw::Tensorflow, ..RandomResizedCrop::imagenet(224) };
        let mut rng = rng();
        for case in cases {
            let [height, width] = case.size;
            let mut sums = [0.0; 5];
            let mut least = 1.0_f64;
            for _ in 0..20_000 {
                let region = crop.draw_region(width, height, &case.objects, &mut rng);
                assert!(region.left + region.width <= width && region.top + region.height <= height);
                let share = |part: u32, side: u32| f64::from(part) / f64::from(side);
                let (rows, columns) = (share(region.height, height), share(region.width, width));
                least = least.min(rows * columns);
                let drawn = [rows * columns, rows, columns, share(region.top, height), share(region.left, width)];
                sums.iter_mut().zip(drawn).for_each(|(sum, value)| *sum += value / 20_000.0);
            }
            let expected = [case.area, case.rows, case.columns, case.top, case.left];
            for (found, expected) in sums.into_iter().zip(expected) {
                assert!((found - expected).abs() < 0.008, "{found}, not {expected} of {case:?}");
            }
            assert!((least - case.least_area).abs() < 0.005, "{least} of {case:?}");
        }
    }

    #[test]
    fn a_single_pixel_can_be_cropped() {
        for draw in [CropDraw::Torch, CropDraw::Tensorflow] {
            let region =
                RandomResizedCrop { draw, ..RandomResizedCrop::imagenet(8) }.draw_region(1, 1, &[], &mut rng());
            assert_eq!(region, Region::whole(1, 1));
        }
    }

    #[test]
    fn short_side_is_resized() {
        let crop = ResizeCentreCrop::imagenet(224);
        assert_eq!(crop.resize, 256);
        assert_eq!(crop.resized(500, 375), [256, 341]);
        assert_eq!(crop.resized(375, 500), [341, 256]);
        assert_eq!(crop.resized(1, 32_768), [32_768 * 256, 256]);
    }

    #[test]
    fn settings_are_checked() {
        let train = RandomResizedCrop::imagenet(224);
        assert!(Transform::Train(train).check().is_ok());
        for bad in [
            RandomResizedCrop { size: 0, ..train },
            RandomResizedCrop { scale: (0.0, 1.0), ..train },
            RandomResizedCrop { scale: (0.5, 0.4), ..train },
            RandomResizedCrop { ratio: (0.0, 1.0), ..train },
            RandomResizedCrop { ratio: (f64::NAN, 1.0), ..train },
            RandomResizedCrop { flip: 1.5, ..train },
        ] {
            assert!(Transform::Train(bad).check().is_err(), "{bad:?}");
        }
        let error = Transform::Eval(ResizeCentreCrop::antialiased(200, 224)).check().unwrap_err();
        assert_eq!(error.to_string(), "resize is 200, expected 224 to 4096");
    }
}
