//! Data sets: reading, decoding, augmenting, drawing, tokenizing and batching.
//!
//! Images: a [`Dataset`] gives u8 images `[H, W, 3]` with a [`SampleTarget`], a label or the [`detection::Objects`] in them; a
//! [`Sampler`] decides their order in each epoch; a [`Loader`] prepares batches of any [`Samples`] on worker threads. Pixels are normalised inside the compiled
//! step. Every random number is drawn from a counter-based generator
//! named by seed, epoch and sample, so nothing depends on the number of workers or on where a run was resumed. Text for
//! pre-training is in [`text`], questions about texts are in [`squad`], and annotated objects of images are in [`coco`].

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod augment;
mod binary;
mod cifar;
mod class_folder;
pub mod coco;
mod dataset;
mod decode;
pub mod detection;
pub mod draw;
mod error;
mod feeds;
mod font;
mod hdf5;
mod hex;
mod image;
mod image_stream;
mod imagenet;
mod json;
mod labelled;
mod listing;
mod loader;
mod new_file;
mod new_folder;
mod panics;
mod parallel;
mod placement;
mod positioned;
mod preview;
mod record_shards;
mod resize;
mod rng;
mod sampler;
pub mod shapes;
pub mod squad;
mod synthetic;
mod target;
pub mod text;
mod tf_example;
pub mod tfrecord;
mod two_tap;
mod utf8;
mod verify;
mod wording;

pub use augment::{CropDraw, RandomResizedCrop, ResizeCentreCrop, ShareBox, Transform};
pub use binary::{BinaryImages, BinaryOfFolder, WrittenBinary};
pub use cifar::CifarBin;
pub use class_folder::{ClassFolder, UnknownClass};
pub use dataset::{Dataset, LabelledImages, Normalization, Scratch, Split};
pub use decode::exif::Exif;
pub use decode::{
    ColourMode, IMAGE_ENDINGS, ImageFormat, ImageInfo, MAX_PIXELS, MAX_SIDE, decode_file, decode_rgb, has_image_ending,
};
pub use error::{DataError, DecodeError, FilePosition};
pub use feeds::{Array, Feeds, Field, Row};
pub use hdf5::{MOST_HDF5_COMPRESSION, open_hdf5};
pub use hex::hex;
pub use image::{FileFormat, Image};
pub use image_stream::ImageStream;
pub use imagenet::{
    IMAGENET_CLASSES, ImageLayout, ImageNetClass, ImageRecords, LabelledReport, RecordsOfFolder, WrittenImages,
    imagenet_classes, readable_class, verify_labelled,
};
pub use labelled::open_labelled;
pub use loader::{
    Batch, ImageSamples, LoadedImage, Loader, LoaderOptions, LoaderStats, OnBadSample, SampleKey, Samples,
    SkippedSample, Stage, StageTimes,
};
pub use new_file::{NewFile, hidden_beside, replace_file, sync_folder};
pub use new_folder::Unfinished;
pub use parallel::try_map;
pub use placement::{Placement, Resampling, ResizeBuffers};
pub use preview::{contact_sheet, object_sheet, side_by_side};
pub use resize::Region;
pub use rng::{Philox, Purpose};
pub use sampler::{BatchRange, Position, Sampler, SamplerOptions, Share};
pub use synthetic::{Synthetic, SyntheticObjects};
pub use target::{Label, SampleTarget};
pub use utf8::read_text;
pub use verify::{DamagedFile, SplitReport, VerifyReport, verify};
pub use wording::plain_message;
