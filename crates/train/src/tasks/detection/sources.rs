//! Data sets of images with objects by the names that commands and recipes give them.

use super::detector::ClassCategory;
use super::kind::DetectorSettings;
use super::score::Truths;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::source::DataSource;
use bessemer_data::coco::{CategoryIds, CocoOptions, CocoSet, CocoSource, Instances};
use bessemer_data::detection::AnnotatedImages;
use bessemer_data::shapes::Scenes;
use bessemer_data::{Split, SyntheticObjects};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Images with objects.
pub(super) type ImagesWithObjects = dyn AnnotatedImages;

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

    /// The category of each class.
    pub(super) fn class_categories(&self) -> Vec<ClassCategory> {
        let classes = self.set.class_names().iter().zip(&self.categories);
        classes.map(|(name, &id)| ClassCategory { id, name: name.clone() }).collect()
    }

    /// A set whose classes have the ids 1, 2, and so on.
    fn generated(set: impl AnnotatedImages + 'static) -> Self {
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

fn open_coco(root: &Path, settings: &DetectorSettings, split: Split) -> Result<(CocoSource, Source), TrainError> {
    let files = CocoSource::find(root, split)?;
    let opened = open(&files, settings, split)?;
    Ok((files, opened))
}

fn open(files: &CocoSource, settings: &DetectorSettings, split: Split) -> Result<Source, TrainError> {
    let options = CocoOptions {
        framing: settings.framing(split),
        category_ids: settings.category_ids,
        exif: settings.exif,
        masks: settings.has_masks() && !matches!(files, CocoSource::Unannotated { .. }),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    Ok(Source::of_coco(CocoSet::open(files, &options)?, settings.layout.max_objects))
}

fn synthetic(recipe: &Recipe, settings: &DetectorSettings, samples: u64) -> Result<Source, TrainError> {
    let size = settings.canvas.map(|side| side as u32);
    let set = SyntheticObjects::new(recipe.train.seed, samples as usize, size, settings.classes, settings.has_masks())?;
    Ok(Source::generated(set))
}

fn scenes(recipe: &Recipe, settings: &DetectorSettings, split: Split, samples: u64) -> Result<Source, TrainError> {
    let size = settings.canvas.map(|side| side as u32);
    let framing = settings.framing(split);
    Ok(Source::generated(Scenes::new(recipe.train.seed, split, samples as usize, size, framing)?))
}

/// The images to train on.
///
/// # Errors
/// Data that is not there or not laid out as it should be; sizes out of range; more classes than the model has.
pub(super) fn training_set(
    source: &DataSource,
    recipe: &Recipe,
    settings: &DetectorSettings,
) -> Result<Source, TrainError> {
    let samples = |default: u64| recipe.data.train_samples.unwrap_or(default);
    let opened = match source {
        DataSource::Synthetic => synthetic(recipe, settings, samples(SYNTHETIC_SAMPLES))?,
        DataSource::Shapes => scenes(recipe, settings, Split::Train, samples(SCENES_TRAIN_SAMPLES))?,
        DataSource::Folder(root) => open_coco(root, settings, Split::Train)?.1,
    };
    check_classes(source, &*opened.set, settings)?;
    Ok(opened)
}

/// The images to evaluate on, and the true objects of them; `None` for synthetic data of which the recipe asks no evaluation.
///
/// # Errors
/// As [`training_set`].
pub(super) fn evaluation_set(
    source: &DataSource,
    recipe: &Recipe,
    settings: &DetectorSettings,
) -> Result<Option<(Source, Truths)>, TrainError> {
    let given = recipe.data.eval_samples;
    let (opened, truths) = match source {
        DataSource::Synthetic => {
            let Some(samples) = given else { return Ok(None) };
            (synthetic(recipe, settings, samples)?, Truths::OfSet)
        }
        DataSource::Shapes => {
            (scenes(recipe, settings, Split::Val, given.unwrap_or(SCENES_EVAL_SAMPLES))?, Truths::OfSet)
        }
        DataSource::Folder(root) => {
            let (files, opened) = open_coco(root, settings, Split::Val)?;
            let annotations = match &files {
                CocoSource::Files { annotations, .. } => Some(annotations),
                CocoSource::Unannotated { .. } => None,
                CocoSource::Records { annotations, .. } => annotations.as_ref(),
            };
            let truths = match annotations {
                Some(annotations) => truths_of(&*opened.set, Instances::open(annotations)?),
                None => Truths::OfSet,
            };
            (opened, truths)
        }
    };
    check_classes(source, &*opened.set, settings)?;
    Ok(Some((opened, truths)))
}

/// Whether the classes of a set to evaluate on are those that a run was trained on.
///
/// # Errors
/// Classes of both that have other names, all of which are listed: their detections would count as those of others.
pub(super) fn check_names(
    source: &DataSource,
    evaluated: &Source,
    trained: &[ClassCategory],
) -> Result<(), TrainError> {
    let evaluated = evaluated.class_categories();
    let different: Vec<String> = (trained.iter().zip(&evaluated))
        .filter(|(trained, evaluated)| trained.id.is_some() && evaluated.id.is_some() && trained.name != evaluated.name)
        .map(|(trained, evaluated)| format!("`{}` of the run is `{}` there", trained.name, evaluated.name))
        .collect();
    match different.is_empty() {
        true => Ok(()),
        false => {
            let allowed = format!(
                "its categories have other names than those that the model was trained on: {}; list the same categories in the same order \
                 (data.category_ids = \"dense\" numbers them by their ids)",
                different.join(", ")
            );
            Err(TrainError::setting("the evaluation set", source, allowed))
        }
    }
}

/// The annotations; or what the set itself has, where its images are not among those of the annotations because their
/// records have no ids.
fn truths_of(set: &ImagesWithObjects, annotations: Instances) -> Truths {
    let is_annotated = |index| annotations.image_number(i64::from(set.image(index).0)).is_some();
    if (0..set.len()).all(is_annotated) { Truths::Annotated(Arc::new(annotations)) } else { Truths::OfSet }
}

/// The images of COCO's `annotations/image_info_PART.json` in a folder, of which nothing is known but their categories.
///
/// # Errors
/// As [`training_set`]; a source that is no folder.
pub(super) fn unannotated_set(
    source: &DataSource,
    part: &str,
    settings: &DetectorSettings,
) -> Result<Source, TrainError> {
    let DataSource::Folder(root) = source else {
        return Err(TrainError::setting("the split", part, format!("{source} has no images without annotations")));
    };
    let opened = open(&CocoSource::find_unannotated(root, part)?, settings, Split::Val)?;
    check_classes(source, &*opened.set, settings)?;
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

fn check_classes(source: &DataSource, set: &ImagesWithObjects, settings: &DetectorSettings) -> Result<(), TrainError> {
    let wanted = set.num_classes();
    // The class behind the last category of files stays empty; a model may leave it out.
    let is_raw = settings.category_ids == CategoryIds::Raw && matches!(source, DataSource::Folder(_));
    let needed = if is_raw { wanted - 1 } else { wanted };
    match settings.classes >= needed {
        true => Ok(()),
        false => {
            let background = settings.layout.first_class as usize;
            let and = if background > 0 { ", the background included," } else { "" };
            let allowed = format!("{source} has {wanted} classes: at least {}{and} are needed", needed + background);
            Err(TrainError::setting("model.num_classes", settings.classes + background, allowed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_data::FileFormat;
    use bessemer_data::detection::Framing;
    use bessemer_data::shapes::CocoFolder;

    #[test]
    fn annotations_without_the_images_of_a_set_are_not_its_truth() {
        let folder = tempfile::tempdir().unwrap();
        let drawn = CocoFolder { seed: 1, train: 1, val: 2, width: 32, height: 32, format: FileFormat::Png };
        drawn.write(folder.path()).unwrap();
        let options = CocoOptions {
            framing: Framing::fit([32, 32]),
            category_ids: CategoryIds::Raw,
            exif: bessemer_data::Exif::Ignore,
            masks: false,
            threads: 1,
        };
        let set = CocoSet::open(&CocoSource::find(folder.path(), Split::Val).unwrap(), &options).unwrap();
        let path = folder.path().join("annotations/instances_val2017.json");
        assert!(matches!(truths_of(&set, Instances::open(&path).unwrap()), Truths::Annotated(_)));

        let mut others: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (list, id) in [("images", "id"), ("annotations", "image_id")] {
            let ids = others[list].as_array_mut().unwrap().iter_mut().map(|entry| &mut entry[id]);
            ids.for_each(|id| *id = (id.as_i64().unwrap() + 1000).into());
        }
        std::fs::write(&path, others.to_string()).unwrap();
        assert!(matches!(truths_of(&set, Instances::open(&path).unwrap()), Truths::OfSet));
    }
}
