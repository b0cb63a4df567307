//! Data sets by the names that commands and recipes give them.

use super::recipe::ClassifierRecipe;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::source::DataSource;
use bessemer_data::shapes::{ShapeClass, Shapes};
use bessemer_data::{
    CifarBin, LabelledImages, RandomResizedCrop, ResizeCentreCrop, Sampler, SamplerOptions, Split, Synthetic,
    Transform, open_labelled,
};
use std::sync::Arc;

/// Samples of ImageNet: an epoch of `synthetic` is as long.
const SYNTHETIC_SAMPLES: u64 = 1_281_167;
const SHAPES_TRAIN_SAMPLES: u64 = 4096;
const SHAPES_EVAL_SAMPLES: u64 = 1024;

/// File by which an evaluation set in one file is known.
pub(super) const CIFAR_IMAGES: &str = "images_u8_nhwc.bin";

impl DataSource {
    /// The images to train on.
    ///
    /// # Errors
    /// Data that is not there or not laid out as it should be; sizes out of range; more classes than the model has.
    pub fn training_set(&self, recipe: &Recipe) -> Result<Arc<LabelledImages>, TrainError> {
        let (data, seed) = (&recipe.data, recipe.train.seed);
        let own: &ClassifierRecipe = recipe.own()?;
        let images = &own.images;
        let size = images.image_size as u32;
        let samples = |default: u64| data.train_samples.unwrap_or(default) as usize;
        let set: Arc<LabelledImages> = match self {
            Self::Synthetic => Arc::new(Synthetic::new(seed, samples(SYNTHETIC_SAMPLES), [size; 2], own_classes(own))?),
            Self::Shapes => {
                let shapes = Shapes::new(seed, Split::Train, samples(SHAPES_TRAIN_SAMPLES), size)?;
                Arc::new(shapes.with_classes(shape_classes(own))?)
            }
            Self::Folder(root) => {
                let crop = RandomResizedCrop {
                    size,
                    scale: images.crop_scale.into(),
                    ratio: images.crop_ratio.into(),
                    draw: images.crop_draw,
                    resampling: images.resampling,
                    flip: images.flip,
                    scaled_decode: images.scaled_decode,
                };
                open_labelled(root, Split::Train, Transform::Train(crop), images.exif)?
            }
        };
        let (has, wanted) = (own_classes(own), set.num_classes());
        if wanted > has {
            let (offset, spare) = (images.label_offset, images.spare_outputs);
            let allowed = format!(
                "{self} has {wanted} classes, data.label_offset is {offset}, data.spare_outputs {spare}: at least {} are needed",
                wanted as u64 + offset + spare
            );
            return Err(TrainError::setting("model.num_classes", own.model.num_classes, allowed));
        }
        Ok(set)
    }

    /// The images to evaluate on; `None` for synthetic data of which the recipe asks no evaluation.
    ///
    /// # Errors
    /// As [`DataSource::training_set`].
    pub fn evaluation_set(&self, recipe: &Recipe) -> Result<Option<Arc<LabelledImages>>, TrainError> {
        let (data, seed) = (&recipe.data, recipe.train.seed);
        let own: &ClassifierRecipe = recipe.own()?;
        let images = &own.images;
        let size = images.eval_image_size as u32;
        Ok(Some(match self {
            Self::Synthetic => {
                let Some(samples) = data.eval_samples else { return Ok(None) };
                Arc::new(Synthetic::new(seed, samples as usize, [size; 2], own_classes(own))?)
            }
            Self::Shapes => {
                let samples = data.eval_samples.unwrap_or(SHAPES_EVAL_SAMPLES) as usize;
                Arc::new(Shapes::new(seed, Split::Val, samples, size)?.with_classes(shape_classes(own))?)
            }
            Self::Folder(root) if root.join(CIFAR_IMAGES).exists() => Arc::new(CifarBin::open(root)?),
            Self::Folder(root) => {
                let crop = ResizeCentreCrop { resampling: images.resampling, resize: images.eval_resize as u32, size };
                open_labelled(root, Split::Val, Transform::Eval(crop), images.exif)?
            }
        }))
    }
}

/// Classes of the model that data can have.
fn own_classes(own: &ClassifierRecipe) -> usize {
    own.class_outputs().len()
}

/// Shapes that are drawn: all, or as many as the model has classes.
fn shape_classes(own: &ClassifierRecipe) -> usize {
    own_classes(own).min(ShapeClass::ALL.len())
}

/// The order of a training set.
///
/// # Errors
/// A batch that is larger than the set; a last batch that would not be full although the recipe wants to keep it.
pub(super) fn training_sampler(set: &LabelledImages, recipe: &Recipe) -> Result<Sampler, TrainError> {
    let batch_size = recipe.train.batch_size as usize;
    let own: &ClassifierRecipe = recipe.own()?;
    if !own.labels.drop_last && !set.len().is_multiple_of(batch_size) {
        let allowed = format!("the {} samples of the data set are no multiple of train.batch_size", set.len());
        return Err(TrainError::setting("train.drop_last", false, allowed));
    }
    Ok(Sampler::new(set.len(), SamplerOptions::train(batch_size, recipe.train.seed))?)
}
