//! What detectors have in common.

use bessemer_ir::{DType, Value};
use bessemer_nn::{Builder, Result};

/// The objects of a batch.
pub(crate) struct Objects {
    /// `f32[B, G, 4]`
    pub boxes: Value,
    /// `i32[B, G]`
    pub classes: Value,
    /// `i32[B]`
    pub count: Value,
}

impl Objects {
    /// Adds the feeds `boxes`, `classes` and `count` for at most `capacity` objects of an image.
    pub(crate) fn feed(b: &mut Builder, batch: usize, capacity: usize) -> Result<Self> {
        Ok(Objects {
            boxes: b.feed("boxes", DType::F32, [batch, capacity, 4])?,
            classes: b.feed("classes", DType::I32, [batch, capacity])?,
            count: b.feed("count", DType::I32, [batch])?,
        })
    }
}

/// The sum of tensors of one shape.
pub(crate) fn total(b: &mut Builder, parts: Vec<Value>) -> Result<Value> {
    let mut parts = parts.into_iter();
    let first = parts.next().expect("there are levels");
    parts.try_fold(first, |total, part| b.graph.add(total, part))
}
