//! Data sets of images with objects by the names that commands and recipes give them.

use super::detector::ClassCategory;
use super::kind::DetectorSettings;
use super::score::{Truths, threads};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::class_scores::classes_without;
use crate::tasks::source::DataSource;
use bessemer_data::coco::{Category, CategoryIds, CocoOptions, CocoSet, CocoSource, Numbering, listed};
use bessemer_data::detection::AnnotatedImages;
use bessemer_data::shapes::Scenes;
use bessemer_data::{Split, SyntheticObjects};
use std::collections::BTreeSet;
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
    /// Categories that are none of the classes.
    without_class: Vec<Category>,
    /// Objects of each class; empty for a generated set.
    objects_of_class: Vec<usize>,
}

impl Source {
    /// Names of the classes of which there is an object.
    pub(super) fn present_classes(&self) -> BTreeSet<&str> {
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
        Self {
            set: Arc::new(set),
            categories,
            notes: Vec::new(),
            without_class: Vec::new(),
            objects_of_class: Vec::new(),
        }
    }

    fn of_coco(set: Arc<CocoSet>, max_objects: usize) -> Self {
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
        let (without_class, objects_of_class) = (classes.without_class().to_vec(), summary.objects_of_class.clone());
        Self { set, categories, notes, without_class, objects_of_class }
    }
}

fn open(
    files: &CocoSource,
    settings: &DetectorSettings,
    split: Split,
    numbering: Numbering,
) -> Result<Arc<CocoSet>, TrainError> {
    let masks = settings.has_masks() && !matches!(files, CocoSource::Unannotated { .. });
    Ok(Arc::new(CocoSet::open(files, &options(settings, split, numbering, masks))?))
}

/// How images of a split are read.
pub(super) fn options(settings: &DetectorSettings, split: Split, numbering: Numbering, masks: bool) -> CocoOptions {
    CocoOptions { framing: settings.framing(split), numbering, exif: settings.exif, masks, threads: threads() }
}

/// Which classes the categories of a set to evaluate on are: those of the same names, where the classes of the model have names.
fn numbering_of(trained: Option<&[ClassCategory]>, settings: &DetectorSettings) -> Numbering {
    let name = |class: &ClassCategory| class.id.map(|_| class.name.clone());
    match trained {
        Some(classes) => Numbering::ByNames(classes.iter().map(name).collect()),
        None => settings.category_ids.into(),
    }
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
        DataSource::Folder(root) => {
            let files = CocoSource::find(root, Split::Train)?;
            let set = open(&files, settings, Split::Train, settings.category_ids.into())?;
            Source::of_coco(set, settings.layout.max_objects)
        }
    };
    check_classes(source, &opened, settings)?;
    Ok(opened)
}

/// The images to evaluate on, and the true objects of them; `None` for synthetic data of which the recipe asks no evaluation. Where the classes
/// of the model are known, categories are those of the same names.
///
/// # Errors
/// As [`training_set`]; not one class of the model in the set, or others that are drawn.
pub(super) fn evaluation_set(
    source: &DataSource,
    recipe: &Recipe,
    settings: &DetectorSettings,
    trained: Option<&[ClassCategory]>,
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
            let files = CocoSource::find(root, Split::Val)?;
            let set = open(&files, settings, Split::Val, numbering_of(trained, settings))?;
            let annotations = set.annotations(threads())?.expect("a split of a data set has annotations");
            (Source::of_coco(set, settings.layout.max_objects), Truths::Annotated(Arc::new(annotations)))
        }
    };
    check_classes(source, &opened, settings)?;
    if let (Truths::OfSet, Some(trained)) = (&truths, trained) {
        check_drawn(source, &*opened.set, trained)?;
    }
    Ok(Some((opened, truths)))
}

/// Whether objects that are drawn are of the classes of a model.
///
/// # Errors
/// Classes of other names, all of which are listed.
fn check_drawn(source: &DataSource, set: &ImagesWithObjects, trained: &[ClassCategory]) -> Result<(), TrainError> {
    let different: Vec<String> = (trained.iter().zip(set.class_names()))
        .filter(|(trained, drawn)| trained.name != **drawn)
        .map(|(trained, drawn)| format!("`{}` of the model is `{drawn}` there", trained.name))
        .collect();
    match different.is_empty() {
        true => Ok(()),
        false => {
            let allowed =
                format!("its objects are of other classes than the model was trained on: {}", different.join(", "));
            Err(TrainError::setting("the evaluation set", source, allowed))
        }
    }
}

/// The images of COCO's `annotations/image_info_PART.json` in a folder, of which nothing is known but their categories.
///
/// # Errors
/// As [`evaluation_set`]; a source that is no folder.
pub(super) fn unannotated_set(
    source: &DataSource,
    part: &str,
    settings: &DetectorSettings,
    trained: Option<&[ClassCategory]>,
) -> Result<Source, TrainError> {
    let DataSource::Folder(root) = source else {
        return Err(TrainError::setting("the split", part, format!("{source} has no images without annotations")));
    };
    let files = CocoSource::find_unannotated(root, part)?;
    let set = open(&files, settings, Split::Val, numbering_of(trained, settings))?;
    let opened = Source::of_coco(set, settings.layout.max_objects);
    check_classes(source, &opened, settings)?;
    Ok(opened)
}

/// What a person should know of the classes of a model before it is evaluated on a set: which categories there are no classes of it, and
/// which of the classes that are `wanted` have no object there.
pub(super) fn class_notes(evaluated: &Source, trained: &[ClassCategory], wanted: &BTreeSet<&str>) -> Vec<String> {
    unknown_categories(evaluated, trained).into_iter().chain(absent_classes(evaluated, wanted)).collect()
}

fn unknown_categories(evaluated: &Source, trained: &[ClassCategory]) -> Option<String> {
    let unknown = &evaluated.without_class;
    let is_missing = |(class, category): &(&ClassCategory, &Option<i64>)| class.id.is_some() && category.is_none();
    let missing = trained.iter().zip(&evaluated.categories).filter(is_missing).map(|(class, _)| class.name.as_str());
    let (there, missing) = (listed(unknown.iter().map(|category| category.name.as_str())), listed(missing));
    (!unknown.is_empty()).then(|| {
        format!(
            "categories of the evaluation set that are no class of the model, so that their objects are not found, {} of {}: {there}{}{missing}",
            unknown.len(),
            unknown.len() + evaluated.categories.iter().flatten().count(),
            if missing.is_empty() { "" } else { "; its classes that are no categories there: " },
        )
    })
}

/// Generated sets have all classes, and what images without annotations have is not known.
fn absent_classes(evaluated: &Source, wanted: &BTreeSet<&str>) -> Option<String> {
    if evaluated.objects_of_class.iter().all(|&objects| objects == 0) {
        return None;
    }
    let present = evaluated.present_classes();
    let absent: Vec<&str> = wanted.difference(&present).copied().collect();
    classes_without("an object", &absent, wanted.len())
}

/// Whether a model has the classes of a set.
///
/// # Errors
/// Too few classes, with the settings that give it enough.
fn check_classes(source: &DataSource, opened: &Source, settings: &DetectorSettings) -> Result<(), TrainError> {
    let wanted = opened.set.num_classes();
    // The class behind the last category of files stays empty; a model may leave it out.
    let is_raw = settings.category_ids == CategoryIds::Raw && matches!(source, DataSource::Folder(_));
    let needed = if is_raw { wanted - 1 } else { wanted };
    if settings.classes >= needed {
        return Ok(());
    }
    let background = settings.layout.first_class as usize;
    let and = if background > 0 { ", the background included," } else { "" };
    let (has, by_rank) = match is_raw {
        false => (format!("{wanted} classes"), String::new()),
        true => {
            let categories = opened.categories.iter().flatten().count();
            let by_rank = format!(
                ", or, for its {categories} categories numbered by rank, --set data.category_ids=dense --set model.num_classes={}",
                categories + background
            );
            (format!("categories with ids up to {needed}"), by_rank)
        }
    };
    let classes = needed + background;
    let allowed =
        format!("{source} has {has}: at least {classes}{and} are needed: --set model.num_classes={classes}{by_rank}");
    Err(TrainError::setting("model.num_classes", settings.classes + background, allowed))
}
