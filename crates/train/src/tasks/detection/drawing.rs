//! Objects drawn on images.

use bessemer_data::Image;
use bessemer_data::draw::{DrawStyle, DrawnObject, draw_objects};

/// A box to draw.
#[derive(Clone, Debug)]
pub(super) struct LabelledBox {
    /// `[x, y, width, height]` in pixels of the image.
    pub bbox: [f64; 4],
    /// Decides the colour.
    pub class: u32,
    pub label: String,
}

impl LabelledBox {
    /// That of a detection.
    pub(super) fn detected(name: &str, score: f64, class: u32, bbox: [f64; 4]) -> Self {
        Self { bbox, class, label: format!("{name} {:.0}%", score * 100.0) }
    }
}

/// An image with boxes and labels in it.
pub(super) fn drawn(image: &Image, boxes: &[LabelledBox]) -> Image {
    let shown = boxes.iter().map(|LabelledBox { bbox: [x, y, width, height], class, label }| DrawnObject {
        bbox: [*x, *y, x + width, y + height],
        class: *class,
        label,
        mask: None,
    });
    let mut picture = image.clone();
    draw_objects(&mut picture, &shown.collect::<Vec<_>>(), DrawStyle::for_size(image.height, image.width));
    picture
}
