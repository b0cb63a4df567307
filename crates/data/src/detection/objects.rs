//! Objects of an image: boxes, classes and masks, and the arrays that a batch holds them in.

use super::ObjectMask;
use crate::feeds::{Field, Row, fill};
use crate::{DataError, Dataset, Placement, SampleTarget};

/// An object. Coordinates are pixels from the upper left corner.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// `[x1, y1, x2, y2]`
    pub bbox: [f64; 4],
    /// Number of the class.
    pub class: u32,
    /// Its pixels, where masks are asked for.
    pub mask: Option<ObjectMask>,
}

impl Object {
    /// Area of the box.
    pub fn area(&self) -> f64 {
        let [x1, y1, x2, y2] = self.bbox;
        (x2 - x1) * (y2 - y1)
    }
}

/// The objects of an image as its data set knows them, or of a sample after [`Objects::place`].
#[derive(Debug, Clone)]
pub struct Objects {
    /// Id of the image in its data set.
    pub image_id: i32,
    /// The objects, in the order of the data set.
    pub objects: Vec<Object>,
    /// How the sample was made.
    placed: Option<Placement>,
}

impl Default for Objects {
    fn default() -> Self {
        Self::new(0, Vec::new())
    }
}

impl Objects {
    /// Those of an image before any transform.
    pub fn new(image_id: i32, objects: Vec<Object>) -> Self {
        Self { image_id, objects, placed: None }
    }

    /// The objects in the sample that a placement makes of the image: boxes and masks follow the pixels, boxes are cut off where
    /// the sample shows no more of the image, and objects of which nothing is left are left out.
    pub fn place(mut self, placement: &Placement) -> Self {
        self.objects = self
            .objects
            .into_iter()
            .filter_map(|Object { bbox, class, mask }| {
                let bbox = placement.bbox(bbox)?;
                Some(Object { bbox, class, mask: mask.map(|mask| mask.place(placement)) })
            })
            .collect();
        self.placed = Some(*placement);
        self
    }

    /// How the sample was made; `None` before [`Objects::place`].
    pub fn placement(&self) -> Option<&Placement> {
        self.placed.as_ref()
    }

    /// The largest `capacity` objects in their order, of equal ones the first; all where there are no more.
    pub(crate) fn largest(&self, capacity: usize) -> Vec<&Object> {
        let mut order: Vec<usize> = (0..self.objects.len()).collect();
        order.sort_by(|&a, &b| self.objects[b].area().total_cmp(&self.objects[a].area()));
        order.truncate(capacity);
        order.sort_unstable();
        order.into_iter().map(|index| &self.objects[index]).collect()
    }
}

/// Images with objects that are known before images are framed.
pub trait AnnotatedImages: Dataset<Target = Objects> {
    /// Id of image `index`, and its height and width before it is framed.
    fn image(&self, index: usize) -> (i32, [u32; 2]);

    /// The objects of image `index` in pixels of the image, with masks if the set has them.
    ///
    /// # Errors
    /// A record or a mask that is damaged.
    fn objects(&self, index: usize) -> Result<Vec<Object>, DataError>;
}

/// Sizes of the arrays of a batch of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLayout {
    /// Most objects of a sample, `G`. Of more the largest are kept.
    pub max_objects: usize,
    /// Number of the first class in a batch: 1 where 0 is the background.
    pub first_class: u32,
    /// Height and width `S` of the crops of masks, where they are asked for.
    pub crop: Option<usize>,
}

impl SampleTarget for Objects {
    type Layout = ObjectLayout;

    /// `ids i32[N]`, those of the images; `sizes f32[N, 2]`, height and width of the part of the canvas that shows the image;
    /// `scales f32[N]`, pixels of the image for each pixel of the canvas; `boxes f32[N, G, 4]` as `[x1, y1, x2, y2]` in pixels of
    /// the canvas; `classes i32[N, G]`; `count i32[N]`, how many objects there are; `dropped i32[N]`, how many there were beyond
    /// `G`; and with masks `crops u8[N, G, S, S]`, 0 to 255, each the part of the mask in its box. Rows behind the count are
    /// zeros.
    fn fields(layout: &ObjectLayout) -> Vec<Field> {
        let most = layout.max_objects;
        let mut fields = vec![
            Field::i32("ids", 1),
            Field::f32("sizes", 2),
            Field::f32("scales", 1),
            Field::f32("boxes", 4 * most),
            Field::i32("classes", most),
            Field::i32("count", 1),
            Field::i32("dropped", 1),
        ];
        fields.extend(layout.crop.map(|size| Field::u8("crops", most * size * size)));
        fields
    }

    fn write(&self, layout: &ObjectLayout, row: &mut Row<'_>) {
        let placement = self.placed.as_ref().expect("a data set places the objects of a sample");
        let kept = self.largest(layout.max_objects);
        row.i32("ids")[0] = self.image_id;
        row.f32("sizes").copy_from_slice(&placement.size().map(|side| side as f32));
        row.f32("scales")[0] = placement.nominal_scale().recip() as f32;
        fill(row.f32("boxes"), kept.iter().flat_map(|object| object.bbox.map(|x| x as f32)), 0.0);
        fill(row.i32("classes"), kept.iter().map(|object| (object.class + layout.first_class) as i32), 0);
        row.i32("count")[0] = kept.len() as i32;
        row.i32("dropped")[0] = (self.objects.len() - kept.len()) as i32;
        let Some(size) = layout.crop else { return };
        let crops = row.u8("crops");
        crops[kept.len() * size * size..].fill(0);
        for (object, out) in kept.iter().zip(crops.chunks_exact_mut(size * size)) {
            match &object.mask {
                Some(mask) => mask.crop(object.bbox, placement.canvas(), out, size),
                None => out.fill(0),
            }
        }
    }
}
