//! Objects drawn on pictures: boxes, labels, translucent masks.

use crate::Image;
use crate::detection::ObjectMask;
use crate::font::{self, draw_text, text_width};

/// An object to draw. Coordinates are pixels of the picture.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnObject<'a> {
    /// `[x1, y1, x2, y2]`; what is outside the picture is not drawn.
    pub bbox: [f64; 4],
    /// Decides the colour.
    pub class: u32,
    /// Nothing is written for an empty one.
    pub label: &'a str,
    /// Its mask, drawn over the picture in its colour.
    pub mask: Option<&'a ObjectMask>,
}

/// Sizes of what is drawn, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawStyle {
    /// Width of the lines of boxes.
    pub line: usize,
    /// Side of a dot of the letters, which are 5 by 7 dots.
    pub dot: usize,
}

/// Share of the colour in the pixels of a mask, and in those at its border.
const MASK_SHARE: f32 = 0.45;
const BORDER_SHARE: f32 = 0.9;
const DARK: [u8; 3] = [16, 16, 16];
const LIGHT: [u8; 3] = [255, 255, 255];
/// Step between the hues of two classes, a fraction of the circle: the golden ratio keeps any few of them apart.
const HUE_STEP: f64 = 0.618_033_988_749_895;

impl DrawStyle {
    /// Lines and letters that are readable on a picture of that size.
    pub fn for_size(height: usize, width: usize) -> Self {
        let short = height.min(width);
        Self { line: ((short + 128) / 256).clamp(1, 16), dot: ((short + 96) / 240).clamp(1, 16) }
    }
}

/// The colour of a class: the same in every picture.
pub fn class_colour(class: u32) -> [u8; 3] {
    let hue = (f64::from(class) * HUE_STEP).fract() * 6.0;
    let (saturation, value) = if class.is_multiple_of(2) { (0.85, 1.0) } else { (0.7, 0.9) };
    let channel = |shift: f64| {
        let place = (hue + shift) % 6.0;
        let share = place.min(4.0 - place).clamp(0.0, 1.0);
        (255.0 * value * (1.0 - saturation * share)).round() as u8
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

/// Draws masks, then boxes, then labels on a filled ground, the largest object first. A label is put where it hides no other:
/// above its box, in it, or below, in smaller letters where there is no room; one that finds no place is left out.
pub fn draw_objects(picture: &mut Image, objects: &[DrawnObject<'_>], style: DrawStyle) {
    let area = |object: &DrawnObject<'_>| (object.bbox[2] - object.bbox[0]) * (object.bbox[3] - object.bbox[1]);
    let mut order: Vec<&DrawnObject<'_>> = objects.iter().collect();
    order.sort_by(|a, b| area(b).total_cmp(&area(a)));
    for object in &order {
        if let Some(mask) = object.mask {
            blend_mask(picture, mask, class_colour(object.class));
        }
    }
    for object in &order {
        draw_box(picture, object.bbox, style.line, class_colour(object.class));
    }
    let mut taken = Vec::new();
    for object in order.iter().filter(|object| !object.label.is_empty()) {
        draw_label(picture, object, style, &mut taken);
    }
}

/// A rectangle of pixels: columns and rows, the ends excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rectangle {
    left: usize,
    top: usize,
    right: usize,
    bottom: usize,
}

impl Rectangle {
    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }
}

fn blend_mask(picture: &mut Image, mask: &ObjectMask, colour: [u8; 3]) {
    let (right, bottom) = ((mask.left + mask.width).min(picture.width), (mask.top + mask.height()).min(picture.height));
    for y in mask.top..bottom {
        for x in (mask.left..right).filter(|&x| mask.contains(x, y)) {
            let neighbours = [(x.wrapping_sub(1), y), (x + 1, y), (x, y.wrapping_sub(1)), (x, y + 1)];
            let is_border = neighbours.into_iter().any(|(x, y)| !mask.contains(x, y));
            let share = if is_border { BORDER_SHARE } else { MASK_SHARE };
            let pixel = &mut picture.pixels[(y * picture.width + x) * 3..][..3];
            for (value, colour) in pixel.iter_mut().zip(colour) {
                *value = (f32::from(*value) * (1.0 - share) + f32::from(colour) * share).round() as u8;
            }
        }
    }
}

fn fill(picture: &mut Image, rectangle: Rectangle, colour: [u8; 3]) {
    let Rectangle { left, top, right, bottom } = rectangle;
    let right = right.min(picture.width);
    for y in top..bottom.min(picture.height) {
        if left < right {
            let row = &mut picture.pixels[(y * picture.width + left) * 3..(y * picture.width + right) * 3];
            row.as_chunks_mut::<3>().0.fill(colour);
        }
    }
}

/// The pixels of a box within a picture, at least one in each direction; `None` if it is outside.
fn pixels_of([x1, y1, x2, y2]: [f64; 4], picture: &Image) -> Option<Rectangle> {
    let (width, height) = (picture.width as f64, picture.height as f64);
    if !(x1 < width && y1 < height && x2 >= 0.0 && y2 >= 0.0 && x1 <= x2 && y1 <= y2) {
        return None;
    }
    let (left, top) = (x1.max(0.0).round() as usize, y1.max(0.0).round() as usize);
    let (left, top) = (left.min(picture.width - 1), top.min(picture.height - 1));
    let (right, bottom) = (x2.min(width).round() as usize, y2.min(height).round() as usize);
    Some(Rectangle { left, top, right: right.max(left + 1), bottom: bottom.max(top + 1) })
}

/// Lines along the inner side of a box.
fn draw_box(picture: &mut Image, bbox: [f64; 4], line: usize, colour: [u8; 3]) {
    let Some(outer) = pixels_of(bbox, picture) else { return };
    let Rectangle { left, top, right, bottom } = outer;
    fill(picture, Rectangle { bottom: bottom.min(top + line), ..outer }, colour);
    fill(picture, Rectangle { top: top.max(bottom.saturating_sub(line)), ..outer }, colour);
    fill(picture, Rectangle { right: right.min(left + line), ..outer }, colour);
    fill(picture, Rectangle { left: left.max(right.saturating_sub(line)), ..outer }, colour);
}

fn draw_label(picture: &mut Image, object: &DrawnObject<'_>, style: DrawStyle, taken: &mut Vec<Rectangle>) {
    let Some(outer) = pixels_of(object.bbox, picture) else { return };
    let is_free = |place: &Rectangle| !taken.iter().any(|other: &Rectangle| place.overlaps(other));
    let find = |dot: usize| label_places(object.label, outer, dot, picture).find(is_free).map(|place| (dot, place));
    let Some((dot, place)) = find(style.dot).or_else(|| find(style.dot.div_ceil(2))) else { return };
    let colour = class_colour(object.class);
    fill(picture, place, colour);
    let [red, green, blue] = colour.map(f32::from);
    // Rec. 601 luma.
    let text = if 0.299 * red + 0.587 * green + 0.114 * blue > 128.0 { DARK } else { LIGHT };
    let padding = padding(dot);
    let room = (place.right - place.left).saturating_sub(2 * padding);
    draw_text(picture, object.label, [place.left + padding, place.top + padding], room, dot, text);
    taken.push(place);
}

/// Pixels between a label's text and the border of its ground.
fn padding(dot: usize) -> usize {
    dot + dot / 2
}

/// Places within a picture where the label of a box may be, the best first.
fn label_places(label: &str, outer: Rectangle, dot: usize, picture: &Image) -> impl Iterator<Item = Rectangle> {
    let width = (text_width(label, dot) + 2 * padding(dot)).min(picture.width);
    let height = (font::HEIGHT * dot + 2 * padding(dot)).min(picture.height);
    let left = outer.left.min(picture.width - width);
    let right_aligned = outer.right.saturating_sub(width);
    let (above, lowest) = (outer.top.checked_sub(height), picture.height - height);
    let lines = [above, Some(outer.top), Some(outer.bottom), outer.bottom.checked_sub(height)];
    let places = lines.into_iter().flatten().flat_map(move |top| [(left, top), (right_aligned, top)]);
    let places = places.filter(move |&(_, top)| top <= lowest);
    places.map(move |(left, top)| Rectangle { left, top, right: left + width, bottom: top + height })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREY: [u8; 3] = [90, 90, 90];

    fn pixel(picture: &Image, x: usize, y: usize) -> [u8; 3] {
        picture.pixels[(y * picture.width + x) * 3..][..3].try_into().unwrap()
    }

    fn object(bbox: [f64; 4], class: u32, label: &str) -> DrawnObject<'_> {
        DrawnObject { bbox, class, label, mask: None }
    }

    #[test]
    fn boxes_are_drawn_inside_their_borders() {
        let mut picture = Image::filled(40, 30, GREY);
        let style = DrawStyle { line: 2, dot: 1 };
        draw_objects(&mut picture, &[object([5.0, 6.0, 20.0, 25.0], 3, "")], style);
        let colour = class_colour(3);
        for (x, y, is_line) in
            [(5, 6, true), (19, 24, true), (4, 6, false), (20, 24, false), (6, 15, true), (7, 15, false), (12, 7, true)]
        {
            assert_eq!(pixel(&picture, x, y), if is_line { colour } else { GREY }, "{x}, {y}");
        }
    }

    #[test]
    fn labels_find_room_and_hide_no_other() {
        let mut picture = Image::filled(60, 60, GREY);
        let style = DrawStyle { line: 1, dot: 1 };
        let boxes =
            [[10.0, 30.0, 50.0, 58.0], [10.0, 30.0, 50.0, 58.0], [0.0, 0.0, 60.0, 60.0], [55.0, 2.0, 70.0, 12.0]];
        let objects: Vec<_> = (0..4).map(|class| object(boxes[class as usize], class, "cat")).collect();
        draw_objects(&mut picture, &objects, style);
        let filled = |class: u32| {
            let colour = class_colour(class);
            picture.pixels.as_chunks::<3>().0.iter().filter(|&&found| found == colour).count()
        };
        for class in 0..4 {
            assert!(filled(class) > 80, "{class}: {}", filled(class));
        }
        assert_eq!(pixel(&picture, 11, 21), class_colour(0), "above the box");
        let same: Vec<_> = (0..30).map(|class| object(boxes[0], class, "cat")).collect();
        draw_objects(&mut picture, &same, style);
        assert_eq!(pixel(&picture, 11, 21), class_colour(0), "the first one is not hidden");
    }

    #[test]
    fn what_is_outside_is_left_out() {
        let mut picture = Image::filled(20, 10, GREY);
        let before = picture.clone();
        let style = DrawStyle::for_size(10, 20);
        let outside = [[30.0, 0.0, 40.0, 5.0], [-9.0, -9.0, -2.0, -1.0], [5.0, 5.0, 2.0, 8.0], [f64::NAN; 4]];
        draw_objects(&mut picture, &outside.map(|bbox| object(bbox, 1, "far away")), style);
        assert_eq!(picture, before);
        draw_objects(&mut picture, &[object([-5.0, -5.0, 50.0, 50.0], 1, "a label longer than the picture")], style);
        assert_ne!(picture, before);
        draw_objects(&mut picture, &[object([19.9, 9.9, 19.95, 9.95], 1, "dot")], style);
    }

    #[test]
    fn masks_shine_through() {
        let mut picture = Image::filled(8, 8, GREY);
        let mask = ObjectMask { left: 2, top: 3, width: 2, pixels: vec![true, false, true, true] };
        let seen = DrawnObject { mask: Some(&mask), ..object([2.0, 3.0, 4.0, 5.0], 0, "") };
        draw_objects(&mut picture, &[seen], DrawStyle { line: 0, dot: 1 });
        assert_eq!(pixel(&picture, 3, 3), GREY);
        let blended = pixel(&picture, 2, 3);
        assert!(blended != GREY && blended != class_colour(0), "{blended:?}");
    }

    #[test]
    fn colours_of_few_classes_differ() {
        for a in 0..12 {
            for b in 0..a {
                let distance: i32 =
                    (0..3).map(|c| (i32::from(class_colour(a)[c]) - i32::from(class_colour(b)[c])).abs()).sum();
                assert!(distance > 40, "{a} and {b}: {distance}");
            }
        }
    }

    #[test]
    fn sizes_follow_the_picture() {
        assert_eq!(DrawStyle::for_size(64, 64), DrawStyle { line: 1, dot: 1 });
        assert_eq!(DrawStyle::for_size(512, 512), DrawStyle { line: 2, dot: 2 });
        assert_eq!(DrawStyle::for_size(1080, 1920), DrawStyle { line: 4, dot: 4 });
    }
}
