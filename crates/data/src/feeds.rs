//! The arrays of a batch under the names of a step's feeds. A data set states them once, as fields; memory for them is
//! allocated, checked, padded and used again by the loader alone.

/// The content of a feed.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Pixels.
    U8(Vec<u8>),
    /// Token ids, labels and counts.
    I32(Vec<i32>),
    /// Weights, boxes and masks.
    F32(Vec<f32>),
}

impl Array {
    /// As it lies in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::U8(data) => data,
            Self::I32(data) => bytemuck::cast_slice(data),
            Self::F32(data) => bytemuck::cast_slice(data),
        }
    }

    fn zeros(element: Element, len: usize) -> Self {
        match element {
            Element::U8 => Self::U8(vec![0; len]),
            Element::I32 => Self::I32(vec![0; len]),
            Element::F32 => Self::F32(vec![0.0; len]),
        }
    }

    fn element(&self) -> Element {
        match self {
            Self::U8(_) => Element::U8,
            Self::I32(_) => Element::I32,
            Self::F32(_) => Element::F32,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::U8(data) => data.len(),
            Self::I32(data) => data.len(),
            Self::F32(data) => data.len(),
        }
    }

    fn zero_from(&mut self, start: usize) {
        match self {
            Self::U8(data) => data[start..].fill(0),
            Self::I32(data) => data[start..].fill(0),
            Self::F32(data) => data[start..].fill(0.0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    U8,
    I32,
    F32,
}

/// An array that every batch of a data set has: its name and what one sample holds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    name: &'static str,
    element: Element,
    /// Elements of a sample.
    len: usize,
}

impl Field {
    /// `u8[N, len]`
    pub const fn u8(name: &'static str, len: usize) -> Self {
        Self { name, element: Element::U8, len }
    }

    /// `i32[N, len]`
    pub const fn i32(name: &'static str, len: usize) -> Self {
        Self { name, element: Element::I32, len }
    }

    /// `f32[N, len]`
    pub const fn f32(name: &'static str, len: usize) -> Self {
        Self { name, element: Element::F32, len }
    }
}

/// Arrays by the names of feeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Feeds(Vec<(&'static str, Array)>);

impl Feeds {
    /// Adds an array.
    pub fn push(&mut self, name: &'static str, array: Array) {
        self.0.push((name, array));
    }

    /// All arrays with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Array)> {
        self.0.iter().map(|(name, array)| (*name, array))
    }

    /// The elements of a `u8` feed; none where there is no such feed.
    pub fn u8(&self, name: &str) -> &[u8] {
        match self.find(name) {
            Some(Array::U8(data)) => data,
            _ => &[],
        }
    }

    /// The elements of an `i32` feed; none where there is no such feed.
    pub fn i32(&self, name: &str) -> &[i32] {
        match self.find(name) {
            Some(Array::I32(data)) => data,
            _ => &[],
        }
    }

    /// The elements of an `f32` feed; none where there is no such feed.
    pub fn f32(&self, name: &str) -> &[f32] {
        match self.find(name) {
            Some(Array::F32(data)) => data,
            _ => &[],
        }
    }

    /// The elements of an `i32` feed, to be changed; none where there is no such feed.
    pub fn i32_mut(&mut self, name: &str) -> &mut [i32] {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Array::I32(data))) => data,
            _ => &mut [],
        }
    }

    fn find(&self, name: &str) -> Option<&Array> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, array)| array)
    }

    /// Zeros for `batch_size` samples.
    pub(crate) fn alloc(fields: &[Field], batch_size: usize) -> Self {
        let zeros = |field: &Field| (field.name, Array::zeros(field.element, batch_size * field.len));
        Self(fields.iter().map(zeros).collect())
    }

    /// The arrays of `fields` for `batch_size` samples, without those added behind them; `None` where they are others.
    pub(crate) fn reuse(mut self, fields: &[Field], batch_size: usize) -> Option<Self> {
        self.0.truncate(fields.len());
        let is_field = |(array, field): (&(&str, Array), &Field)| {
            array.0 == field.name && array.1.element() == field.element && array.1.len() == batch_size * field.len
        };
        (self.0.len() == fields.len() && self.0.iter().zip(fields).all(is_field)).then_some(self)
    }

    /// The part of every array that belongs to sample `index` of the batch.
    pub(crate) fn row<'a>(&'a mut self, fields: &'a [Field], index: usize) -> Row<'a> {
        Row { feeds: self, fields, index }
    }

    /// Fills the places from sample `first` on with zeros.
    pub(crate) fn zero_from(&mut self, fields: &[Field], first: usize) {
        for ((_, array), field) in self.0.iter_mut().zip(fields) {
            array.zero_from(first * field.len);
        }
    }
}

impl<const N: usize> From<[(&'static str, Array); N]> for Feeds {
    fn from(feeds: [(&'static str, Array); N]) -> Self {
        Self(feeds.into())
    }
}

/// The place of one sample in a batch: a slice of each array of the data set's fields, with what was there before.
///
/// # Panics
/// Its methods panic for a name or a type that is not among the fields: a bug of the data set.
#[derive(Debug)]
pub struct Row<'a> {
    feeds: &'a mut Feeds,
    fields: &'a [Field],
    index: usize,
}

impl Row<'_> {
    /// The sample's elements of a `u8` field.
    pub fn u8(&mut self, name: &str) -> &mut [u8] {
        match self.array(name) {
            (Array::U8(data), range) => &mut data[range],
            (other, _) => wrong_type(name, other),
        }
    }

    /// The sample's elements of an `i32` field.
    pub fn i32(&mut self, name: &str) -> &mut [i32] {
        match self.array(name) {
            (Array::I32(data), range) => &mut data[range],
            (other, _) => wrong_type(name, other),
        }
    }

    /// The sample's elements of an `f32` field.
    pub fn f32(&mut self, name: &str) -> &mut [f32] {
        match self.array(name) {
            (Array::F32(data), range) => &mut data[range],
            (other, _) => wrong_type(name, other),
        }
    }

    fn array(&mut self, name: &str) -> (&mut Array, std::ops::Range<usize>) {
        let position = self.fields.iter().position(|field| field.name == name);
        let position = position.unwrap_or_else(|| panic!("the data set has no field `{name}`"));
        let len = self.fields[position].len;
        (&mut self.feeds.0[position].1, self.index * len..(self.index + 1) * len)
    }
}

fn wrong_type(name: &str, array: &Array) -> ! {
    panic!("the field `{name}` has elements of type {:?}", array.element())
}

/// Writes the values, then padding.
pub(crate) fn fill<T: Copy>(row: &mut [T], mut values: impl Iterator<Item = T>, padding: T) {
    row.fill_with(|| values.next().unwrap_or(padding));
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: [Field; 3] = [Field::u8("images", 3), Field::i32("labels", 1), Field::f32("boxes", 2)];

    fn batch() -> Feeds {
        let mut feeds = Feeds::alloc(&FIELDS, 2);
        let mut row = feeds.row(&FIELDS, 1);
        row.u8("images").copy_from_slice(&[1, 2, 3]);
        row.i32("labels")[0] = -7;
        fill(row.f32("boxes"), [0.5].into_iter(), -1.0);
        feeds
    }

    #[test]
    fn rows_are_parts_of_arrays() {
        let mut feeds = batch();
        assert_eq!(feeds.u8("images"), [0, 0, 0, 1, 2, 3]);
        assert_eq!(feeds.i32("labels"), [0, -7]);
        assert_eq!(feeds.f32("boxes"), [0.0, 0.0, 0.5, -1.0]);
        assert!(feeds.i32("images").is_empty() && feeds.f32("masks").is_empty());
        feeds.zero_from(&FIELDS, 1);
        assert_eq!(feeds, Feeds::alloc(&FIELDS, 2));
    }

    #[test]
    fn memory_is_used_again_where_it_fits() {
        let feeds = batch();
        let images = feeds.u8("images").as_ptr();
        let mut longer = feeds.clone();
        longer.push("mixup_weight", Array::F32(vec![0.5]));
        assert_eq!(longer.reuse(&FIELDS, 2), Some(feeds.clone()), "what was added is dropped");
        assert_eq!(feeds.clone().reuse(&FIELDS, 3), None, "another batch size");
        assert_eq!(feeds.clone().reuse(&FIELDS[..2], 2).map(|feeds| feeds.0.len()), Some(2));
        assert_eq!(Feeds::alloc(&FIELDS[..2], 2).reuse(&FIELDS, 2), None, "an array is missing");
        let other = [Field::i32("images", 3), FIELDS[1], FIELDS[2]];
        assert_eq!(feeds.clone().reuse(&other, 2), None, "another type");
        assert_eq!(feeds.reuse(&FIELDS, 2).unwrap().u8("images").as_ptr(), images, "nothing is copied");
    }

    #[test]
    #[should_panic(expected = "the data set has no field `masks`")]
    fn unknown_fields_are_bugs() {
        batch().row(&FIELDS, 0).u8("masks");
    }
}
