//! COCO's files and the metric on them: equal to pycocotools, and what is wrong with a file.

mod files;
mod parity;
mod sets;
#[path = "../common/shared.rs"]
mod shared;
