//! What a data set knows of an image besides its pixels.

use crate::feeds::{Field, Row};

/// What is known of an image besides its pixels, and how a batch holds it.
pub trait SampleTarget: Default + Send + 'static {
    /// What the sizes of a batch's arrays depend on.
    type Layout: Clone + Send + Sync + 'static;

    /// The arrays of a batch besides `images`.
    fn fields(layout: &Self::Layout) -> Vec<Field>;

    /// Writes every element of the row.
    fn write(&self, layout: &Self::Layout, row: &mut Row<'_>);
}

/// The class of the whole image, by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Label(pub u32);

impl SampleTarget for Label {
    type Layout = ();

    /// `labels i32[N]`
    fn fields(_: &()) -> Vec<Field> {
        vec![Field::i32("labels", 1)]
    }

    fn write(&self, _: &(), row: &mut Row<'_>) {
        row.i32("labels")[0] = self.0 as i32;
    }
}
