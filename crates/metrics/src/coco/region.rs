use crate::mask::Rle;

/// The region of an object in its image.
pub trait Region: Sync {
    /// Intersection over union with a ground truth. For a crowd the divisor is the area of `self` alone, because a
    /// detection may cover any part of a crowd.
    fn iou(&self, truth: &Self, is_crowd: bool) -> f64;
}

/// A box in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundingBox {
    /// Left edge.
    pub x: f64,
    /// Top edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

impl From<[f64; 4]> for BoundingBox {
    /// From `[x, y, width, height]`.
    fn from([x, y, width, height]: [f64; 4]) -> Self {
        Self { x, y, width, height }
    }
}

impl BoundingBox {
    /// Width times height in square pixels.
    pub fn area(&self) -> f64 {
        self.width * self.height
    }
}

impl Region for BoundingBox {
    fn iou(&self, truth: &Self, is_crowd: bool) -> f64 {
        let width = (self.width + self.x).min(truth.width + truth.x) - self.x.max(truth.x);
        let height = (self.height + self.y).min(truth.height + truth.y) - self.y.max(truth.y);
        if width <= 0.0 || height <= 0.0 {
            return 0.0;
        }
        let common = width * height;
        common / if is_crowd { self.area() } else { self.area() + truth.area() - common }
    }
}

/// A mask with its bounding box, which rules out most pairs of masks cheaply.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    rle: Rle,
    bounding_box: BoundingBox,
}

impl From<Rle> for Mask {
    fn from(rle: Rle) -> Self {
        let bounding_box = rle.bounding_box().into();
        Self { rle, bounding_box }
    }
}

impl Mask {
    /// The run-length encoded mask.
    pub fn rle(&self) -> &Rle {
        &self.rle
    }
}

impl Region for Mask {
    /// 0 for masks of different sizes.
    fn iou(&self, truth: &Self, is_crowd: bool) -> f64 {
        if self.bounding_box.iou(&truth.bounding_box, false) <= 0.0 {
            return 0.0;
        }
        self.rle.iou(&truth.rle, is_crowd).unwrap_or(0.0)
    }
}
