use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{SceneObject, ShapeClass, Shapes, draw_scene};
use crate::new_folder::{Unfinished, create};
use crate::{DataError, Dataset, FileFormat, Image, Split};

/// A folder of single shapes to write: `train/CLASS/NUMBER.EXT` and `val/CLASS/NUMBER.EXT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapesFolder {
    /// Seed of the drawings.
    pub seed: u64,
    /// Pictures in `train/` and `val/`, at least one for each class.
    pub train: usize,
    /// Pictures for evaluation.
    pub val: usize,
    /// Width and height in pixels.
    pub size: u32,
    /// Format of the picture files.
    pub format: FileFormat,
}

/// A folder of scenes to write in the layout of COCO 2017: `annotations/instances_{train,val}2017.json`, `train2017/`
/// and `val2017/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CocoFolder {
    /// Seed of the drawings.
    pub seed: u64,
    /// Pictures for training.
    pub train: usize,
    /// Pictures for evaluation.
    pub val: usize,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Format of the picture files.
    pub format: FileFormat,
}

/// Errors: fewer pictures than `least` in a split; `expected` says how many there may be.
fn check_counts(train: usize, val: usize, least: usize, expected: &str) -> Result<(), DataError> {
    let counts =
        [("number of pictures to train on (--train)", train), ("number of pictures to evaluate on (--val)", val)];
    match counts.into_iter().find(|&(_, count)| count < least) {
        None => Ok(()),
        Some((name, count)) => Err(DataError::option(name, count, expected)),
    }
}

impl ShapesFolder {
    /// Writes the pictures that [`Shapes`] draws. `root` must not exist yet, or be empty.
    pub fn write(&self, root: &Path) -> Result<(), DataError> {
        let classes = ShapeClass::ALL.len();
        let least = format!("at least {classes}, one of each class");
        check_counts(self.train, self.val, classes, &least)?;
        let unfinished = Unfinished::in_empty(root)?;
        for (split, count) in [(Split::Train, self.train), (Split::Val, self.val)] {
            self.write_split(&root.join(split.name()), split, count)?;
        }
        unfinished.keep();
        Ok(())
    }

    fn write_split(&self, folder: &Path, split: Split, count: usize) -> Result<(), DataError> {
        let shapes = Shapes::new(self.seed, split, count, self.size)?;
        for class in ShapeClass::ALL {
            create(&folder.join(class.name()))?;
        }
        let [height, width] = shapes.image_size(0);
        let mut picture = Image::filled(width, height, [0; 3]);
        for index in 0..count {
            shapes.draw(index, &mut picture.pixels);
            let name = format!("{}/{index:06}.{}", shapes.class(index).name(), self.format.extension());
            picture.write(&folder.join(name), self.format)?;
        }
        Ok(())
    }
}

impl CocoFolder {
    /// Draws and writes the scenes. `root` must not exist yet, or be empty.
    ///
    /// Category ids are labels plus 1; image and annotation ids count from 1 in each split.
    pub fn write(&self, root: &Path) -> Result<(), DataError> {
        check_counts(self.train, self.val, 1, "at least 1")?;
        let unfinished = Unfinished::in_empty(root)?;
        let annotations = root.join("annotations");
        create(&annotations)?;
        for (split, count) in [(Split::Train, self.train), (Split::Val, self.val)] {
            let folder = format!("{}2017", split.name());
            let instances = self.write_split(&root.join(&folder), split, count)?;
            let path = annotations.join(format!("instances_{folder}.json"));
            fs::write(&path, instances.to_string()).map_err(DataError::writing(&path, "write the file"))?;
        }
        unfinished.keep();
        Ok(())
    }

    fn write_split(&self, folder: &Path, split: Split, count: usize) -> Result<Value, DataError> {
        create(folder)?;
        let mut images = Vec::with_capacity(count);
        let mut annotations = Vec::new();
        for index in 0..count {
            let scene = draw_scene(self.seed, split, index, self.width, self.height)?;
            let id = index + 1;
            let file_name = format!("{id:012}.{}", self.format.extension());
            scene.picture.write(&folder.join(&file_name), self.format)?;
            images.push(json!({
                "id": id, "file_name": file_name, "width": self.width, "height": self.height, "license": 1,
            }));
            for object in &scene.objects {
                annotations.push(annotation(annotations.len() + 1, id, object));
            }
        }
        Ok(json!({
            "info": { "description": format!("Shapes drawn from seed {}, {}", self.seed, split.name()), "version": "1.0" },
            "licenses": [{ "id": 1, "name": "CC0 1.0", "url": "https://creativecommons.org/publicdomain/zero/1.0/" }],
            "images": images,
            "annotations": annotations,
            "categories": categories(),
        }))
    }
}

fn annotation(id: usize, image_id: usize, object: &SceneObject) -> Value {
    let corners: Vec<f64> = object.polygon.iter().flatten().map(|&v| hundredths(v)).collect();
    json!({
        "id": id,
        "image_id": image_id,
        "category_id": object.class.label() + 1,
        "bbox": object.bbox.map(hundredths),
        "area": hundredths(object.area),
        "iscrowd": 0,
        "segmentation": [corners],
    })
}

fn categories() -> Vec<Value> {
    let category =
        |class: ShapeClass| json!({ "id": class.label() + 1, "name": class.name(), "supercategory": "shape" });
    ShapeClass::ALL.map(category).to_vec()
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
