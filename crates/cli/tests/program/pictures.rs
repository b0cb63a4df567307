//! Pictures of data sets and of a person: turned by their EXIF orientation or not.

use crate::common::bessemer;
use bessemer_data::{Exif, FileFormat, Image};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A JPEG file that says it is to be turned by a quarter to the right.
fn turned(jpeg: &[u8]) -> Vec<u8> {
    let tiff = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let exif = [&[0xff, 0xe1][..], &(tiff.len() as u16 + 8).to_be_bytes(), b"Exif\0\0", tiff].concat();
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

/// Copies the pictures of `from/val` to `turned/val`, with an orientation, and to `upright/val`, with turned pixels.
fn turn_all(root: &Path, from: &str) {
    for class in fs::read_dir(root.join(from).join("val")).unwrap() {
        let class = class.unwrap();
        let folders = ["turned", "upright"].map(|name| root.join(name).join("val").join(class.file_name()));
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        for picture in fs::read_dir(class.path()).unwrap() {
            let picture = picture.unwrap();
            let to = folders[0].join(picture.file_name());
            fs::write(&to, turned(&fs::read(picture.path()).unwrap())).unwrap();
            let upright = Image::read_oriented(&to, Exif::Apply).unwrap();
            let name = Path::new(&picture.file_name()).with_extension("png");
            upright.write(&folders[1].join(name), FileFormat::Png).unwrap();
        }
    }
}

#[test]
fn orientations_are_applied_where_they_are_asked_for() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("data shapes --out shapes --train 20 --val 20 --size 32").ok();
    turn_all(folder.path(), "shapes");
    let train = "train resnet20-cifar --quiet --steps 3 --set train.batch_size=4 --data shapes/";
    run(&format!("{train} --exif apply --out applied")).ok();
    run(&format!("{train} --out ignored")).ok();
    let recipe = |run: &str| fs::read_to_string(folder.path().join(run).join("recipe.toml")).unwrap();
    assert!(recipe("applied").contains("exif = \"apply\"") && recipe("ignored").contains("exif = \"ignore\""));

    let loss = |arguments: &str| {
        let ran = run(&format!("eval resnet20-cifar --json {arguments}")).ok().out;
        serde_json::from_str::<Value>(&ran).unwrap()["loss"].as_f64().unwrap()
    };
    let upright = loss("--weights applied --data upright");
    assert_eq!(loss("--weights applied --data turned"), upright, "as the run was trained");
    assert_eq!(loss("--weights ignored --data turned --exif apply"), loss("--weights ignored --data upright"));
    let lying = loss("--weights applied --data turned --exif ignore");
    assert!((lying - upright).abs() > 1e-4, "{lying} {upright}");
    assert_eq!(loss("--weights ignored --data turned"), loss("--weights ignored --data turned --exif ignore"));

    let best = |arguments: &str| {
        let ran = run(&format!("infer resnet20-cifar --weights ignored --json --top 10 {arguments}")).ok().out;
        serde_json::from_str::<Value>(&ran).unwrap()[0]["classes"].clone()
    };
    let picture = fs::read_dir(folder.path().join("turned/val/star")).unwrap().next().unwrap().unwrap().file_name();
    let stem = Path::new(&picture).file_stem().unwrap().to_str().unwrap();
    let (turned, upright) = (format!("turned/val/star/{stem}.jpg"), format!("upright/val/star/{stem}.png"));
    assert_eq!(best(&turned), best(&upright));
    assert_eq!(best(&format!("{turned} --exif apply")), best(&upright));
    assert_eq!(best(&format!("{turned} --exif ignore")), best(&format!("shapes/val/star/{stem}.jpg")));

    run(&format!("infer resnet20-cifar --weights ignored --exif maybe {turned}")).fails(2, &["apply or ignore"]);
    run("infer bert-tiny --weights x --exif apply text").fails(2, &["--exif", "not for bert-tiny"]);
    run("eval bert-tiny --weights x --data y --exif apply").fails(2, &["--exif", "not for bert-tiny"]);
    run("train bert-tiny --data y --exif apply").fails(2, &["exif"]);
}
