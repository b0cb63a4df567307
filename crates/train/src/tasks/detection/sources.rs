//! Data sets of images with objects by the names that commands and recipes give them.

use super::recipe::{DetectorRecipe, ImageFields};
use super::score::Truths;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::source::DataSource;
use bessemer_data::coco::{CategoryIds, CocoOptions, CocoSet, CocoSource, Instances};
use bessemer_data::detection::{Framing, Objects};
use bessemer_data::shapes::Scenes;
use bessemer_data::{Dataset, Split, SyntheticObjects};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Images with objects.
pub(super) type ImagesWithObjects = dyn Dataset<Target = Objects>;

/// Images of COCO with annotations: an epoch of `synthetic` is as long.
const SYNTHETIC_SAMPLES: u64 = 117_266;
const SCENES_TRAIN_SAMPLES: u64 = 4096;
const SCENES_EVAL_SAMPLES: u64 = 256;

/// An opened data set with what its classes are in files.
pub(super) struct Source {
    pub set: Arc<ImagesWithObjects>,
    /// Ids of the categories of the classes; `None` for a class without a category.
    pub categories: Vec<Option<i64>>,
    /// What a person should know of the set.
    pub notes: Vec<String>,
    /// Objects of each class; empty for a generated set.
    objects_of_class: Vec<usize>,
}

impl Source {
    /// Names of the classes of which there is an object.
    fn present_classes(&self) -> BTreeSet<&str> {
        let classes = self.set.class_names().iter().zip(&self.objects_of_class);
        classes.filter(|(_, objects)| **objects > 0).map(|(name, _)| name.as_str()).collect()
    }

    /// A set whose classes have the ids 1, 2, and so on.
    fn generated(set: impl Dataset<Target = Objects> + 'static) -> Self {
        let categories = (1..=set.num_classes() as i64).map(Some).collect();
        Self { set: Arc::new(set), categories, notes: Vec::new(), objects_of_class: Vec::new() }
    }

    fn of_coco(set: CocoSet, max_objects: usize) -> Self {
        let classes = set.classes();
        let categories = (0..classes.names().len() as u32).map(|class| classes.category_id(class)).collect();
        let summary = set.summary();
        let mut notes = Vec::new();
        if summary.without_area > 0 {
            let first = summary.first_without_area.join("; ");
            notes.push(format!("{} boxes without area are left out, first {first}", summary.without_area));
        }
        let crowded = set.images_with_more_than(max_objects);
        if crowded > 0 {
            notes.push(format!(
                "{crowded} images have more than data.max_objects = {max_objects} objects; the largest are kept"
            ));
        }
        let objects_of_class = summary.objects_of_class.clone();
        Self { set: Arc::new(set), categories, notes, objects_of_class }
    }
}

fn framing(images: &ImageFields, split: Split) -> Framing {
    let canvas = [images.image_size as u32; 2];
    match split {
        Split::Train => Framing {
            jitter: Some(images.jitter.into()),
            flip: images.flip,
            ..Framing::efficientdet_train(canvas, images.resampling)
        },
        Split::Val => Framing::efficientdet_eval(canvas, images.resampling),
    }
}

fn open_coco(root: &Path, images: &ImageFields, split: Split) -> Result<(CocoSource, Source), TrainError> {
    let files = CocoSource::find(root, split)?;
    let opened = open(&files, images, split)?;
    Ok((files, opened))
}

fn open(files: &CocoSource, images: &ImageFields, split: Split) -> Result<Source, TrainError> {
    let options = CocoOptions {
        framing: framing(images, split),
        category_ids: images.category_ids,
        masks: false,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    Ok(Source::of_coco(CocoSet::open(files, &options)?, images.max_objects as usize))
}

/// The images to train on.
///
/// # Errors
/// Data that is not there or not laid out as it should be; sizes out of range; more classes than the model has.
pub(super) fn training_set(source: &DataSource, recipe: &Recipe) -> Result<Source, TrainError> {
    let (data, seed) = (&recipe.data, recipe.train.seed);
    let own: &DetectorRecipe = recipe.own()?;
    let (images, classes) = (&own.images, own.model.num_classes as usize);
    let side = images.image_size as u32;
    let samples = |default: u64| data.train_samples.unwrap_or(default) as usize;
    let opened = match source {
        DataSource::Synthetic => {
            Source::generated(SyntheticObjects::new(seed, samples(SYNTHETIC_SAMPLES), side, classes)?)
        }
        DataSource::Shapes => Source::generated(Scenes::new(
            seed,
            Split::Train,
            samples(SCENES_TRAIN_SAMPLES),
            [side; 2],
            framing(images, Split::Train),
        )?),
        DataSource::Folder(root) => open_coco(root, images, Split::Train)?.1,
    };
    check_classes(source, &*opened.set, classes, images.category_ids)?;
    Ok(opened)
}

/// The images to evaluate on, and the true objects of them; `None` for synthetic data of which the recipe asks no evaluation.
///
/// # Errors
/// As [`training_set`].
pub(super) fn evaluation_set(source: &DataSource, recipe: &Recipe) -> Result<Option<(Source, Truths)>, TrainError> {
    let (data, seed) = (&recipe.data, recipe.train.seed);
    let own: &DetectorRecipe = recipe.own()?;
    let (images, classes) = (&own.images, own.model.num_classes as usize);
    let side = images.image_size as u32;
    let (opened, truths) = match source {
        DataSource::Synthetic => {
            let Some(samples) = data.eval_samples else { return Ok(None) };
            (Source::generated(SyntheticObjects::new(seed, samples as usize, side, classes)?), Truths::OfBatches)
        }
        DataSource::Shapes => {
            let samples = data.eval_samples.unwrap_or(SCENES_EVAL_SAMPLES) as usize;
            let framing = framing(images, Split::Val);
            (Source::generated(Scenes::new(seed, Split::Val, samples, [side; 2], framing)?), Truths::OfBatches)
        }
        DataSource::Folder(root) => {
            let (files, opened) = open_coco(root, images, Split::Val)?;
            let annotations = match &files {
                CocoSource::Files { annotations, .. } => Some(annotations),
                CocoSource::Unannotated { .. } => None,
                CocoSource::Records { annotations, .. } => annotations.as_ref(),
            };
            let truths = match annotations {
                Some(annotations) => Truths::Annotated(Arc::new(Instances::open(annotations)?)),
                None => Truths::OfBatches,
            };
            (opened, truths)
        }
    };
    check_classes(source, &*opened.set, classes, images.category_ids)?;
    Ok(Some((opened, truths)))
}

/// The images of COCO's `annotations/image_info_PART.json` in a folder, of which nothing is known but their categories.
///
/// # Errors
/// As [`training_set`]; a source that is no folder.
pub(super) fn unannotated_set(source: &DataSource, part: &str, recipe: &Recipe) -> Result<Source, TrainError> {
    let own: &DetectorRecipe = recipe.own()?;
    let DataSource::Folder(root) = source else {
        return Err(TrainError::setting("the split", part, format!("{source} has no images without annotations")));
    };
    let opened = open(&CocoSource::find_unannotated(root, part)?, &own.images, Split::Val)?;
    check_classes(source, &*opened.set, own.model.num_classes as usize, own.images.category_ids)?;
    Ok(opened)
}

/// How many absent classes are named.
const NAMED: usize = 10;

/// Says which classes are trained but not evaluated, if there are any. Generated sets have all classes.
pub(super) fn absent_classes(training: &Source, validation: &Source) -> Option<String> {
    if validation.objects_of_class.is_empty() {
        return None;
    }
    let (trained, evaluated) = (training.present_classes(), validation.present_classes());
    let absent: Vec<&str> = trained.difference(&evaluated).copied().collect();
    let more = if absent.len() > NAMED { ", ..." } else { "" };
    (!absent.is_empty()).then(|| {
        format!(
            "{} of {} classes with training objects have none in the validation set, so that scores say nothing about them: {}{more}",
            absent.len(),
            trained.len(),
            absent[..absent.len().min(NAMED)].join(", ")
        )
    })
}

fn check_classes(
    source: &DataSource,
    set: &ImagesWithObjects,
    classes: usize,
    category_ids: CategoryIds,
) -> Result<(), TrainError> {
    let wanted = set.num_classes();
    // The class behind the last category of files stays empty; a model may leave it out.
    let needed =
        if category_ids == CategoryIds::Raw && matches!(source, DataSource::Folder(_)) { wanted - 1 } else { wanted };
    match classes >= needed {
        true => Ok(()),
        false => {
            let allowed = format!("{source} has {wanted} classes: at least {needed} are needed");
            Err(TrainError::setting("model.num_classes", classes, allowed))
        }
    }
}
