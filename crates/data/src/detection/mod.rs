//! Images with objects: what data sets know of them, how they are framed, and how batches hold them.

mod framing;
mod mask;
mod objects;

pub use framing::{BoxBorder, Framing};
pub use mask::ObjectMask;
pub use objects::{AnnotatedImages, Object, ObjectLayout, Objects};
