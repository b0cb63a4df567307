//! Folders of drawn shapes.

use std::fs;
use std::path::Path;

use bessemer_data::shapes::{CocoFolder, Shapes, ShapesFolder, draw_scene};
use bessemer_data::{
    ClassFolder, Dataset, FileFormat, Image, Label, Purpose, ResizeCentreCrop, Scratch, Split, Transform,
};
use serde_json::Value;

#[test]
fn a_class_folder_holds_what_is_drawn() {
    let root = tempfile::tempdir().unwrap();
    let folder = ShapesFolder { seed: 4, train: 20, val: 10, size: 32, format: FileFormat::Png };
    folder.write(root.path()).unwrap();
    let transform = Transform::Eval(ResizeCentreCrop::antialiased(32, 32));
    let read = ClassFolder::open(root.path(), Split::Train, transform).unwrap();
    let drawn = Shapes::new(4, Split::Train, 20, 32).unwrap();
    assert_eq!(read.len(), 20);
    let mut rng = Purpose::Augment.stream(0, 0, 0);
    let mut scratch = Scratch::default();
    for index in 0..20 {
        let number: usize = read.path(index).file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let (mut from_file, mut from_seed) = (vec![0; 32 * 32 * 3], vec![0; 32 * 32 * 3]);
        let Label(label) = read.load(index, &mut rng, &mut scratch, &mut from_file).unwrap();
        drawn.draw(number, &mut from_seed);
        assert_eq!(from_file, from_seed);
        assert_eq!(read.class_names()[label as usize], drawn.class(number).name());
    }
    let again = folder.write(root.path()).unwrap_err().to_string();
    assert!(again.contains("the folder is not empty; expected a new or empty folder"), "{again}");
    assert!(ShapesFolder { val: 9, ..folder }.write(&root.path().join("new")).is_err());
}

#[test]
fn a_coco_folder_holds_what_is_drawn() {
    let root = tempfile::tempdir().unwrap();
    let folder = CocoFolder { seed: 4, train: 6, val: 3, width: 96, height: 64, format: FileFormat::Png };
    folder.write(root.path()).unwrap();
    let train = instances(root.path(), "train2017");
    let scenes: Vec<_> = (0..6).map(|index| draw_scene(4, Split::Train, index, 96, 64).unwrap()).collect();
    let annotations = train["annotations"].as_array().unwrap();
    assert_eq!(annotations.len(), scenes.iter().map(|scene| scene.objects.len()).sum::<usize>());
    for (annotation, (image, object)) in
        annotations.iter().zip(scenes.iter().enumerate().flat_map(|(i, s)| s.objects.iter().map(move |o| (i, o))))
    {
        assert_eq!(annotation["image_id"], image + 1);
        assert_eq!(annotation["category_id"], object.class.label() + 1);
        let bbox: Vec<f64> = serde_json::from_value(annotation["bbox"].clone()).unwrap();
        assert!(bbox.iter().zip(object.bbox).all(|(a, b)| (a - b).abs() <= 0.005));
        assert_eq!(annotation["segmentation"][0].as_array().unwrap().len(), object.polygon.len() * 2);
    }
    for (image, scene) in train["images"].as_array().unwrap().iter().zip(&scenes) {
        let path = root.path().join("train2017").join(image["file_name"].as_str().unwrap());
        assert_eq!(Image::read(&path).unwrap(), scene.picture);
    }
    let val = instances(root.path(), "val2017");
    assert_eq!(val["images"].as_array().unwrap().len(), 3);
    assert_eq!(val["categories"].as_array().unwrap().len(), 10);
}

fn instances(root: &Path, name: &str) -> Value {
    let path = root.join(format!("annotations/instances_{name}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}
