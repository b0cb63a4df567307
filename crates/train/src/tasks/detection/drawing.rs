//! Objects drawn on images.

use bessemer_data::Image;
use bessemer_data::detection::ObjectMask;
use bessemer_data::draw::{DrawStyle, DrawnObject, draw_objects};

/// An object to draw.
#[derive(Clone, Debug)]
pub(super) struct LabelledObject {
    /// `[x, y, width, height]` in pixels of the image.
    pub bbox: [f64; 4],
    /// Decides the colour.
    pub class: u32,
    pub label: String,
    pub mask: Option<ObjectMask>,
}

impl LabelledObject {
    /// That of a detection.
    pub(super) fn detected(name: &str, score: f64, class: u32, bbox: [f64; 4], mask: Option<ObjectMask>) -> Self {
        Self { bbox, class, label: format!("{name} {:.0}%", score * 100.0), mask }
    }
}

/// An image with masks, boxes and labels in it.
pub(super) fn drawn(image: &Image, objects: &[LabelledObject]) -> Image {
    let shown = objects.iter().map(|LabelledObject { bbox: [x, y, width, height], class, label, mask }| DrawnObject {
        bbox: [*x, *y, x + width, y + height],
        class: *class,
        label,
        mask: mask.as_ref(),
    });
    let mut picture = image.clone();
    draw_objects(&mut picture, &shown.collect::<Vec<_>>(), DrawStyle::for_size(image.height, image.width));
    picture
}
