//! Sheets of samples to look at.

use crate::detection::Objects;
use crate::draw::{DrawStyle, DrawnObject, draw_objects};
use crate::font::{self, draw_text, text_width};
use crate::{
    DataError, Dataset, Image, Label, LabelledImages, Placement, Purpose, SampleTarget, Scratch, readable_class,
};

const GAP: usize = 4;
/// Width in pixels from which on samples have large letters under them.
const WIDE: usize = 256;
const BACKGROUND: [u8; 3] = [32, 32, 32];
const TEXT: [u8; 3] = [240, 240, 240];

/// A sheet of `count` samples as training sees them in epoch 0, picked at random from equal parts of the data set, each
/// with the name of its class under it, which for WordNet ids of ImageNet is what people call it. `columns` of 0 asks for a sheet that is about square.
pub fn contact_sheet(dataset: &LabelledImages, count: usize, columns: usize, seed: u64) -> Result<Image, DataError> {
    let name = |_: &mut Image, Label(label): Label| readable_class(&dataset.class_names()[label as usize]).to_owned();
    sheet(dataset, count, columns, seed, name)
}

/// A sheet as [`contact_sheet`] makes it, with the boxes, classes and masks of the objects drawn on the samples, as many of
/// the largest as `max_objects`, and the id of the image and the number of its objects under each.
pub fn object_sheet(
    dataset: &dyn Dataset<Target = Objects>,
    count: usize,
    columns: usize,
    seed: u64,
    max_objects: usize,
) -> Result<Image, DataError> {
    let annotate = |sample: &mut Image, objects: Objects| {
        let kept = objects.largest(max_objects);
        let drawn = kept.iter().map(|object| {
            let label = &dataset.class_names()[object.class as usize];
            DrawnObject { bbox: object.bbox, class: object.class, label, mask: object.mask.as_ref() }
        });
        let [height, width] = objects.placement().map_or([0; 2], Placement::size).map(|side| side as usize);
        draw_objects(sample, &drawn.collect::<Vec<_>>(), DrawStyle::for_size(height, width));
        let plural = if objects.objects.len() == 1 { "" } else { "s" };
        format!("image {}: {} object{plural}", objects.image_id, objects.objects.len())
    };
    sheet(dataset, count, columns, seed, annotate)
}

/// Pictures beside each other, each with its text under it.
pub fn side_by_side(pictures: &[(Image, String)]) -> Image {
    let largest = |side: fn(&Image) -> usize| pictures.iter().map(|(picture, _)| side(picture)).max().unwrap_or(0);
    let (height, widest) = (largest(|picture| picture.height), largest(|picture| picture.width));
    let dot = if widest < WIDE { 1 } else { 2 };
    let width = |(picture, text): &(Image, String)| picture.width.max(text_width(text, dot) + 4 * GAP);
    let total = pictures.iter().map(|panel| width(panel) + GAP).sum::<usize>() + GAP;
    let mut sheet = Image::filled(total, height + font::HEIGHT * dot + 3 * GAP, BACKGROUND);
    let mut left = GAP;
    for panel @ (picture, text) in pictures {
        sheet.paste(&picture.pixels, picture.width, left, GAP);
        draw_text(&mut sheet, text, [left, height + 2 * GAP], width(panel), dot, TEXT);
        left += width(panel) + GAP;
    }
    sheet
}

/// A sheet of samples; `finish` may draw on each, and gives what is written under it.
fn sheet<T: SampleTarget>(
    dataset: &dyn Dataset<Target = T>,
    count: usize,
    columns: usize,
    seed: u64,
    finish: impl Fn(&mut Image, T) -> String,
) -> Result<Image, DataError> {
    let available = dataset.len();
    if !(1..=available).contains(&count) {
        return Err(DataError::option("number of samples", count, format!("1 to {available}")));
    }
    let columns = if columns == 0 { count.isqrt() + usize::from(count.isqrt().pow(2) < count) } else { columns };
    let columns = columns.min(count);
    let picks: Vec<usize> = (0..count).map(|place| pick(place, count, available, seed)).collect();
    let largest = |axis: usize| picks.iter().map(|&index| dataset.image_size(index)[axis]).max().unwrap_or(0);
    let [height, width] = [largest(0), largest(1)];
    let dot = if width < WIDE { 1 } else { 2 };
    let (cell_width, cell_height) = (width + GAP, height + font::HEIGHT * dot + 2 * GAP);
    let rows = count.div_ceil(columns);
    let mut sheet = Image::filled(columns * cell_width + GAP, rows * cell_height + GAP, BACKGROUND);
    let mut scratch = Scratch::default();
    for (place, &index) in picks.iter().enumerate() {
        let [rows, columns_of_sample] = dataset.image_size(index);
        let mut sample = Image::filled(columns_of_sample, rows, [0; 3]);
        let mut rng = Purpose::Augment.stream(seed, 0, index as u64);
        let target = dataset.load(index, &mut rng, &mut scratch, &mut sample.pixels)?;
        let (left, top) = (GAP + place % columns * cell_width, GAP + place / columns * cell_height);
        let text = finish(&mut sample, target);
        sheet.paste(&sample.pixels, columns_of_sample, left, top);
        draw_text(&mut sheet, &text, [left, top + height + GAP / 2], width, dot, TEXT);
    }
    Ok(sheet)
}

fn pick(place: usize, count: usize, available: usize, seed: u64) -> usize {
    let (start, end) = (place * available / count, (place + 1) * available / count);
    let part = u32::try_from(end - start).unwrap_or(u32::MAX);
    start + Purpose::Shuffle.stream(seed, 0, place as u64).below(part) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Split;
    use crate::shapes::Shapes;

    #[test]
    fn shows_samples_with_their_labels() {
        let shapes = Shapes::new(1, Split::Train, 50, 32).unwrap();
        let sheet = contact_sheet(&shapes, 5, 0, 0).unwrap();
        assert_eq!((sheet.width, sheet.height), (3 * 36 + 4, 2 * (32 + 7 + 8) + 4));
        let mut second = vec![0; 32 * 32 * 3];
        shapes.draw(pick(1, 5, 50, 0), &mut second);
        let row = |y: usize| &sheet.pixels[((GAP + y) * sheet.width + GAP + 36) * 3..][..96];
        assert!((0..32).all(|y| row(y) == &second[y * 96..][..96]));
        let text: usize = (34..41).map(|y| row(y).chunks(3).filter(|&pixel| pixel == TEXT).count()).sum();
        assert!(text > 20, "{text} pixels of text");
        assert!(contact_sheet(&shapes, 51, 0, 0).is_err());
        assert!(contact_sheet(&shapes, 0, 0, 0).is_err());
    }

    #[test]
    fn pictures_beside_each_other_leave_room_for_their_texts() {
        let text = "wider than 20 pixels".to_owned();
        let wide = text_width(&text, 1) + 4 * GAP;
        let pictures = [(Image::filled(20, 30, [9, 0, 0]), text), (Image::filled(40, 10, [0, 9, 0]), "b".to_owned())];
        let sheet = side_by_side(&pictures);
        assert_eq!((sheet.width, sheet.height), (wide + 40 + 3 * GAP, 30 + font::HEIGHT + 3 * GAP));
        let pixel = |x: usize, y: usize| <[u8; 3]>::try_from(&sheet.pixels[(y * sheet.width + x) * 3..][..3]).unwrap();
        let right = 2 * GAP + wide;
        let corners =
            [pixel(GAP + 19, GAP + 29), pixel(right, GAP), pixel(right + 39, GAP + 9), pixel(right, GAP + 10)];
        assert_eq!(corners, [[9, 0, 0], [0, 9, 0], [0, 9, 0], BACKGROUND]);
        let written = |columns: std::ops::Range<usize>| {
            let rows = 30 + 2 * GAP..30 + 2 * GAP + font::HEIGHT;
            rows.flat_map(|y| columns.clone().map(move |x| (x, y))).filter(|&(x, y)| pixel(x, y) == TEXT).count()
        };
        assert!(
            written(GAP + 20..wide - 3 * GAP) > 20
                && written(wide - 3 * GAP..right) == 0
                && written(right..right + 5) > 5,
            "both texts are whole"
        );
    }
}
