use std::fs;
use std::path::{Path, PathBuf};

use bessemer_data::DataError;
use bessemer_data::coco::{Instances, Results, Segmentation};
use serde_json::{Value, json};
use tempfile::TempDir;

/// One image of 4 by 6 pixels, two categories, two objects.
fn data() -> Value {
    json!({
        "info": {"year": 2017},
        "images": [{"id": 9, "width": 6, "height": 4, "file_name": "9.jpg"}, {"id": 2, "width": 6, "height": 4}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 1, "name": "dog", "supercategory": "animal"}],
        "annotations": [
            {"id": 5, "image_id": 9, "category_id": 3, "bbox": [1, 1, 2, 2.5], "area": 4.5, "iscrowd": 0,
             "segmentation": [[1, 1, 3, 1, 3, 3, 1, 3], [4, 0, 5, 0, 5, 1, 4, 1]]},
            {"id": 6, "image_id": 2, "category_id": 1, "bbox": [0, 0, 1, 4], "area": 4, "iscrowd": 1,
             "segmentation": {"size": [4, 6], "counts": [0, 4, 20]}},
        ],
    })
}

fn results() -> Value {
    json!([
        {"image_id": 9, "category_id": 3, "score": 0.5, "bbox": [1, 1, 2, 2]},
        {"image_id": 2, "category_id": 1, "score": 1, "segmentation": {"size": [4, 6], "counts": "04d0"}, "bbox": [0, 0, 1, 4]},
    ])
}

struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn instances(&self, data: &Value) -> Result<Instances, DataError> {
        Instances::open(&self.write("data.json", &data.to_string()))
    }

    fn results(&self, results: &Value) -> Result<Results, DataError> {
        let path = self.write("results.json", &results.to_string());
        Results::open(&path, &self.instances(&data()).unwrap())
    }
}

/// The data with one value replaced, or removed if it is null.
fn changed(mut value: Value, pointer: &str, new: Value) -> Value {
    if new.is_null() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
    } else if let Some(place) = value.pointer_mut(pointer) {
        *place = new;
    } else {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[key] = new;
    }
    value
}

#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, DataError>, parts: &[&str]) {
    let message = result.unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
    assert!(message.contains(".json: ") && message.contains("; expected COCO's "), "{message}");
}

#[test]
fn annotations_are_read_by_ascending_ids() {
    let instances = World::new().instances(&data()).unwrap();
    let ids: Vec<i64> = instances.images().iter().map(|image| image.id).collect();
    assert_eq!(ids, [2, 9]);
    assert_eq!(instances.images()[1].file_name.as_deref(), Some("9.jpg"));
    let names: Vec<&str> = instances.categories().iter().map(|category| category.name.as_str()).collect();
    assert_eq!(names, ["dog", "cat"]);
    let [cat, crowd] = instances.annotations() else { panic!("two annotations") };
    assert_eq!((cat.id, cat.image, cat.category, cat.bbox, cat.area), (5, 1, 1, [1.0, 1.0, 2.0, 2.5], 4.5));
    assert_eq!((cat.is_crowd, crowd.is_crowd), (false, true));
    assert!(matches!(&cat.segmentation, Some(Segmentation::Polygons(polygons)) if polygons.len() == 2));
    assert_eq!(instances.mask(0).unwrap().area(), 5);
    assert_eq!(instances.mask(1).unwrap().counts(), [0, 4, 20]);
    assert_eq!(instances.masks(2).unwrap().len(), 2);
}

#[test]
fn numbers_are_rounded_correctly() {
    // Just above the midpoint of two doubles.
    let text = data().to_string().replace("4.5", "1.000000000000000333066907387546963");
    let world = World::new();
    let area = Instances::open(&world.write("data.json", &text)).unwrap().annotations()[0].area;
    assert_eq!(area, 1.0 + 2.0 * f64::EPSILON);
}

#[test]
fn fields_that_boxes_do_not_need_may_be_absent() {
    let world = World::new();
    let less =
        changed(changed(data(), "/annotations/0/segmentation", Value::Null), "/annotations/1/iscrowd", Value::Null);
    let instances = world.instances(&less).unwrap();
    assert_eq!((instances.boxes().len(), instances.annotations()[1].is_crowd), (2, false));
    says(instances.masks(1), &["annotations[0].segmentation is missing, id 5"]);
    let flag = changed(data(), "/annotations/1/iscrowd", json!(true));
    assert!(world.instances(&flag).unwrap().annotations()[1].is_crowd);
}

#[test]
fn areas_are_those_of_boxes_if_the_first_detection_has_one() {
    let world = World::new();
    let instances = world.instances(&data()).unwrap();
    let both = world.results(&results()).unwrap();
    let (boxes, masks) = (both.boxes(&instances, 1).unwrap(), both.masks(&instances, 1).unwrap());
    assert_eq!((boxes[0].area, masks[0].area, masks[0].region.rle().area()), (4.0, 4.0, 4));
    assert_eq!((boxes[1].image, boxes[1].category, boxes[1].score), (0, 0, 1.0));

    let odd = json!([
        {"image_id": 2, "category_id": 1, "score": 0.5, "segmentation": {"size": [4, 6], "counts": [1, 2, 21]}},
        {"image_id": 2, "category_id": 1, "score": 0.5, "bbox": [0, 0, 6, 4], "segmentation": [[0, 0, 6, 0, 6, 2, 0, 2]]},
    ]);
    let odd = world.results(&odd).unwrap();
    let (boxes, masks) = (odd.boxes(&instances, 2).unwrap(), odd.masks(&instances, 2).unwrap());
    assert_eq!(boxes[0].region, [0.0, 1.0, 1.0, 2.0].into());
    assert_eq!(boxes[1].region, [0.0, 0.0, 6.0, 4.0].into());
    assert_eq!([boxes[0].area, boxes[1].area, masks[0].area, masks[1].area], [2.0, 12.0, 2.0, 12.0]);
}

#[test]
fn invalid_annotations_are_refused() {
    let world = World::new();
    let open = |text: &str| Instances::open(&world.write("data.json", text));
    says(open("{\"images\": ["), &["not JSON: EOF while parsing a list at line 1 column 12"]);
    says(open(&data().to_string().replace("4.5", "NaN")), &["not JSON: NaN at line 1 column"]);
    says(open(&data().to_string().replace("4.5", "1e400")), &["not JSON: number out of range at line 1 column"]);
    says(open("[]"), &["invalid length 0"]);
    for (pointer, value, parts) in [
        ("/annotations", Value::Null, ["missing field `annotations`", ""]),
        ("/categories", Value::Null, ["missing field `categories`", ""]),
        ("/images/1/height", Value::Null, ["images[1]: missing field `height`", ""]),
        ("/images/1/height", json!(0), ["images[1] has width 6 and height 0", "id 2"]),
        (
            "/images/1/width",
            json!(-6),
            ["images[1].width: invalid value: integer `-6`, expected a whole number of 0 to 4294967295", ""],
        ),
        ("/images/1/id", json!("x"), ["images[1].id: invalid type: string \"x\", expected a whole number", ""]),
        ("/images/1/id", json!(9), ["images[1].id is 9, as images[0].id is", ""]),
        ("/categories/1/id", json!(3), ["categories[1].id is 3, as categories[0].id is", ""]),
        ("/annotations/1/id", json!(5), ["annotations[1].id is 5, as annotations[0].id is", ""]),
        ("/annotations/1/image_id", json!(7), ["annotations[1].image_id is 7, which images do not have", "id 6"]),
        (
            "/annotations/1/category_id",
            json!(7),
            ["annotations[1].category_id is 7, which categories do not have", "id 6"],
        ),
        ("/annotations/0/area", Value::Null, ["annotations[0]: missing field `area`", ""]),
        ("/annotations/0/bbox", json!([]), ["annotations[0].bbox is empty", "id 5"]),
        ("/annotations/0/bbox", json!([1, 2, 3]), ["annotations[0].bbox: invalid length 3", "a list of 4 numbers"]),
        (
            "/annotations/0/bbox",
            json!([1, 2, 3, 4, 5]),
            ["annotations[0].bbox: invalid length 5", "a list of 4 numbers"],
        ),
        ("/annotations/0/iscrowd", json!(2), ["annotations[0].iscrowd: invalid value: integer `2`", "expected 0 or 1"]),
        (
            "/annotations/0/segmentation",
            json!("x"),
            ["annotations[0].segmentation: invalid type", "a list of polygons or"],
        ),
        ("/annotations/0/segmentation", json!([1.0, 2.0]), ["annotations[0].segmentation[0]: invalid type", ""]),
        ("/annotations/1/segmentation/size", Value::Null, ["annotations[1].segmentation: missing field `size`", ""]),
        ("/annotations/1/segmentation/size", json!([4]), ["annotations[1].segmentation.size: invalid length 1", ""]),
        ("/annotations/1/segmentation/counts", json!([-1]), ["annotations[1].segmentation.counts[0]", "integer `-1`"]),
    ] {
        says(world.instances(&changed(data(), pointer, value)), &parts);
    }
    let missing = Instances::open(Path::new("nowhere.json")).unwrap_err().to_string();
    assert!(missing.contains("nowhere.json: cannot read the file"), "{missing}");
}

#[test]
fn invalid_masks_are_refused_when_they_are_used() {
    let world = World::new();
    for (annotation, value, part) in [
        (
            0,
            json!([[1, 1, 3, 1, 3, 3], [4, 0, 5, 0]]),
            "[1]: a polygon of 4 numbers; expected x and y of at least 3 points",
        ),
        (0, json!([[1, 1, 3, 1, 3, 3, 4]]), "[0]: a polygon of 7 numbers"),
        (0, json!([[1, 1, 3, 1, 3, 1e7]]), "[0]: a polygon with the coordinate 10000000 at index 5"),
        (0, json!([]), " has no polygon"),
        (1, json!({"size": [6, 4], "counts": [24]}), ".size is [6, 4], and the image has height 4 and width 6"),
        (1, json!({"size": [4, 6], "counts": [0, 4]}), ": runs that cover 4 pixels of a mask of 4x6; expected 24"),
        (1, json!({"size": [6, 4], "counts": "h0"}), ".size is [6, 4], and the image has height 4 and width 6"),
        (1, json!({"size": [4, 6], "counts": "04"}), ": runs that cover 4 pixels of a mask of 4x6; expected 24"),
        (1, json!({"size": [4, 6], "counts": "04x"}), ": `x` at byte 2 of compressed runs"),
        (1, json!({"size": [4, 6], "counts": "04d"}), ": compressed runs that end within a number, at byte 3"),
    ] {
        let data = changed(data(), &format!("/annotations/{annotation}/segmentation"), value);
        let instances = world.instances(&data).unwrap();
        assert_eq!(instances.boxes().len(), 2);
        let id = annotation + 5;
        says(instances.masks(2), &[&format!("annotations[{annotation}].segmentation{part}"), &format!(", id {id}")]);
    }
}

#[test]
fn invalid_results_are_refused() {
    let world = World::new();
    says(world.results(&json!({"image_id": 9})), &["invalid type: map, expected a list"]);
    for (pointer, value, parts) in [
        ("/1/image_id", json!(7), ["[1].image_id is 7, which is no image of ", "data.json"]),
        ("/1/score", Value::Null, ["[1]: missing field `score`", ""]),
        ("/1/score", json!("0.5"), ["[1].score: invalid type: string \"0.5\", expected a number", ""]),
        ("/1/bbox", Value::Null, ["[1].bbox is missing, and [0] has one", ""]),
        ("/1/bbox", json!([]), ["[1].bbox is missing, and [0] has one", ""]),
        ("/0/bbox", json!([]), ["[0] has neither bbox nor segmentation", ""]),
        ("/0/bbox", json!([1, 2]), ["[0].bbox: invalid length 2", ""]),
    ] {
        says(world.results(&changed(results(), pointer, value)), &parts);
    }
    let instances = world.instances(&data()).unwrap();
    let masks = |pointer, value| world.results(&changed(results(), pointer, value)).unwrap().masks(&instances, 1);
    says(
        masks("/1/segmentation/size", json!([4, 4])),
        &["[1].segmentation.size is [4, 4], and the image has height 4"],
    );
    says(masks("/1/segmentation/counts", json!("0")), &["[1].segmentation: runs that cover 0 pixels"]);
    says(masks("/0/bbox", json!([0, 0, 1e9, 1])), &["[0].bbox: a polygon with the coordinate 1000000000"]);
}

#[test]
fn detections_of_unknown_categories_are_counted() {
    let world = World::new();
    let unknown = world.results(&changed(results(), "/0/category_id", json!(90))).unwrap();
    assert_eq!((unknown.unknown_categories(), unknown.detections().len()), (Some((1, 90)), 1));
    assert_eq!(world.results(&results()).unwrap().unknown_categories(), None);
    assert!(world.results(&json!([])).unwrap().detections().is_empty());
}
