//! Whole runs of a detector: trained, stopped and resumed, evaluated, asked, and begun from other weights.

use crate::common::{assert_same_tensors, last, last_folder, run_of, turned};
use bessemer_data::shapes::CocoFolder;
use bessemer_data::{Exif, FileFormat, Image, ImageStream};
use bessemer_train::checkpoint::load_checkpoint;
use bessemer_train::events::{EventBody, read_events};
use bessemer_train::recipe::StartRecipe;
use bessemer_train::tasks::frames::{FrameOutput, annotate_frames};
use bessemer_train::tasks::infer::{PredictOptions, Prediction};
use bessemer_train::tasks::registry;
use bessemer_train::{
    ConvertOptions, EvalReport, EvaluateOptions, RunDir, RunFolder, StopSignal, TrainError, TrainOptions,
    convert_weights, evaluate, train,
};
use bessemer_weights::{Dtype, NamedTensor, read_safetensors, write_safetensors};
use serde_json::Value;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use tempfile::TempDir;

const RECIPE: &str = r#"
name = "tiny-detector"
model = { name = "efficientdet-tiny", num_classes = 10, bn_momentum = 0.2, drop_path = 0.1 }
data = { source = "shapes", train_samples = 10, eval_samples = 5, image_size = 128 }
train = { batch_size = 4, steps = 6, seed = 3, clip_each_norm = 5.0, clip_norm = 10.0, ema_decay = 0.9, ema_ramp = true }
optimizer = { kind = "sgd", momentum = 0.9, velocity = "changes", weight_decay = 0.0 }
schedule = { kind = "cosine", base_lr = 0.02, warmup_lr = 1e-3, warmup_epochs = 1.0, epochs = 5 }
eval = { every_steps = 3, batch_size = 2 }
checkpoint = { every_steps = 2 }
loader = { workers = 1 }
"#;

fn options(folder: &Path, overrides: &[&str]) -> TrainOptions {
    run_of(RECIPE, "tiny-detector", folder, overrides)
}

fn resumed(folder: &Path) -> TrainOptions {
    TrainOptions { folder: RunFolder::Resume(folder.to_owned()), ..options(folder, &[]) }
}

#[test]
fn a_detector_is_trained_resumed_evaluated_and_asked() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces, threads) =
        (folder.path().join("whole"), folder.path().join("pieces"), folder.path().join("threads"));
    let report = train(&options(&whole, &[])).unwrap();
    let metrics = ["bbox_ap", "bbox_ap50", "bbox_ar100", "loss", "cls_loss", "box_loss"];
    assert!(metrics.iter().all(|name| report.metrics.contains_key(*name)), "{:?}", report.metrics);
    let compared = |number: usize| whole.join(format!("predictions/compared-{number:03}.jpg"));
    let picture = Image::read(&compared(4)).unwrap();
    assert!(picture.width > 2 * 384 && picture.height > 384 && !compared(5).exists(), "two enlarged images");
    let events = read_events(&whole.join("events.jsonl")).unwrap();
    let parts = events.iter().find_map(|event| match &event.body {
        EventBody::Step(info) => Some(info.parts.keys().cloned().collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(parts.unwrap(), ["box_loss", "cls_loss", "l2_loss"]);

    let mut first = options(&pieces, &[]);
    first.run_steps = Some(4);
    train(&first).unwrap_err();
    assert_eq!(train(&resumed(&pieces)).unwrap().metrics, report.metrics);
    assert_same_tensors(&last(&whole), &last(&pieces));
    let mut two = options(&threads, &[]);
    two.compute.device.threads = 2;
    train(&two).unwrap();
    assert_same_tensors(&last(&whole), &last(&threads));

    // The same scenes from files, in batches of another size.
    let data = folder.path().join("coco");
    CocoFolder { seed: 3, train: 2, val: 5, width: 128, height: 128, format: FileFormat::Png }.write(&data).unwrap();
    let settings = |batch_size: usize, out: &Path| EvaluateOptions {
        batch_size,
        out: Some(out.to_owned()),
        ..EvaluateOptions::default()
    };
    let judged = evaluate(
        "efficientdet-tiny",
        &last_folder(&whole),
        Path::new("shapes"),
        &settings(3, &folder.path().join("a")),
    )
    .unwrap();
    // Batches of another size round otherwise, which may swap detections of a detector that knows nothing yet.
    for name in metrics {
        let tolerance = if name.starts_with("bbox") { 1e-3 } else { 1e-6 };
        let (one, other) = (judged.metrics[name], report.metrics[name]);
        assert!((one - other).abs() < tolerance * other.abs().max(1.0), "{name}: {one} is not {other}");
    }
    let out = folder.path().join("b");
    let of_files = evaluate("efficientdet-tiny", &whole, &data, &settings(5, &out)).unwrap();
    assert_eq!(of_files.counts["objects"], judged.counts["objects"]);
    let results: Vec<Value> = serde_json::from_slice(&fs::read(out.join("bbox.json")).unwrap()).unwrap();
    assert_eq!(results.len() as u64, of_files.counts["detections"]);
    assert!(results.iter().all(|result| result["bbox"].as_array().unwrap().len() == 4 && result["score"].is_f64()));

    let drawn = folder.path().join("drawn");
    let family = registry::find("efficientdet-tiny").unwrap().family();
    let asked =
        PredictOptions { score: Some(0.0), top_k: Some(3), out: Some(drawn.clone()), ..PredictOptions::default() };
    let mut predictor = family.predictor("efficientdet-tiny", &whole, &asked).unwrap();
    let inputs = [data.join("val2017").display().to_string(), "no/such.jpg".to_owned()];
    let mut predictions = predictor.predict(&inputs, &|_, _| ()).unwrap();
    assert_eq!(predictions.len(), 6);
    assert!(predictions.pop().unwrap().unwrap_err().to_string().contains("no/such.jpg"));
    for prediction in predictions {
        let found = prediction.unwrap().json;
        assert_eq!(found["objects"].as_array().unwrap().len(), 3);
        let picture = Path::new(found["path"].as_str().unwrap()).file_name().unwrap();
        assert!(drawn.join(picture).is_file(), "{picture:?} is drawn");
    }
    let results: Vec<Value> = serde_json::from_slice(&fs::read(drawn.join("results.json")).unwrap()).unwrap();
    assert_eq!(results.len(), 15);
    assert!(results.iter().all(|result| result["file_name"].is_string() && result["category_id"].is_i64()));
}

#[test]
fn another_number_of_classes_needs_new_heads() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    train(&options(&first, &["train.steps=1", "data.eval_samples=1"])).unwrap();
    let begin = |run: &Path, overrides: &[&str]| {
        let overrides = [&["model.num_classes=12", "train.steps=1", "data.eval_samples=1"], overrides].concat();
        train(&options(run, &overrides).with_start(StartRecipe::weights(&first)))
    };
    let error = begin(&folder.path().join("refused"), &[]).unwrap_err().to_string();
    assert!(error.contains("model.new_heads") && error.contains("90") && error.contains("108"), "{error}");
    begin(&second, &["model.new_heads=true", "schedule.base_lr=1e-9", "schedule.warmup_lr=0"]).unwrap();
    let (old, new) = (load_checkpoint(&last_folder(&first)).unwrap(), last(&second));
    let stem = |checkpoint: &[NamedTensor<'_>]| {
        checkpoint.iter().find(|tensor| tensor.name == "backbone.conv_stem.weight").unwrap().to_f32().unwrap()
    };
    assert!(stem(&old.model).iter().zip(stem(&new.model)).all(|(a, b)| (a - b).abs() < 1e-6));
    let events = read_events(&second.join("events.jsonl")).unwrap();
    let told = events.iter().any(|event| match &event.body {
        EventBody::Warning(info) => info.message.contains("class_net.predict.conv_pw.weight"),
        _ => false,
    });
    assert!(told, "the run says which tensors are drawn at random");
}

const MODEL: &str = "efficientdet-tiny";

/// A run of one step, which knows nothing yet but finds a hundred objects everywhere.
fn short_run(folder: &Path, overrides: &[&str]) -> std::path::PathBuf {
    let run = folder.join("run");
    let overrides = [&["train.steps=1", "data.eval_samples=2", "data.train_samples=4"], overrides].concat();
    train(&options(&run, &overrides)).unwrap();
    run
}

/// Scenes as COCO has them, 96 wide and 64 high.
fn scenes(folder: &Path) -> std::path::PathBuf {
    let data = folder.join("coco");
    CocoFolder { seed: 3, train: 4, val: 3, width: 96, height: 64, format: FileFormat::Jpeg(90) }.write(&data).unwrap();
    data
}

fn warnings(run: &Path) -> Vec<String> {
    let messages = read_events(&run.join("events.jsonl")).unwrap().into_iter().filter_map(|event| match event.body {
        EventBody::Warning(info) => Some(info.message),
        _ => None,
    });
    messages.collect()
}

fn json(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn pictures_are_turned_before_objects_are_detected() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (short_run(folder.path(), &[]), scenes(folder.path()));
    let (one, two, out) = (folder.path().join("1.jpg"), folder.path().join("2.png"), folder.path().join("out"));
    fs::write(&one, turned(&fs::read(data.join("val2017/000000000001.jpg")).unwrap())).unwrap();
    Image::read_oriented(&one, Exif::Apply).unwrap().write(&two, FileFormat::Png).unwrap();
    let asked = PredictOptions { top_k: Some(7), out: Some(out.clone()), ..PredictOptions::default() };
    let family = registry::find(MODEL).unwrap().family();
    let mut predictor = family.predictor(MODEL, &run, &asked).unwrap();
    let predictions = predictor.predict(&[one, two].map(|path| path.display().to_string()), &|_, _| ()).unwrap();
    assert!(predictions.iter().all(|prediction| prediction.is_ok()));
    let results = json(&out.join("results.json"));
    let (one, two) = results.split_at(7);
    assert!(one.iter().zip(two).all(|(one, two)| one["bbox"] == two["bbox"] && one["score"] == two["score"]));
    assert!(one.iter().all(|one| one["image_id"] == 1) && two.len() == 7, "below the score that is drawn, too");
    let drawn = Image::read(&out.join("1.jpg")).unwrap();
    assert_eq!((drawn.width, drawn.height), (64, 96));

    let labels = folder.path().join("labels.txt");
    fs::write(&labels, "cat\ndog\n").unwrap();
    let asked = PredictOptions { labels: Some(labels), ..PredictOptions::default() };
    let error = family.predictor(MODEL, &run, &asked).err().unwrap().to_string();
    assert!(error.contains("the number of labels is 2") && error.ends_with("has 10 classes"), "{error}");
}

#[test]
fn no_picture_is_overwritten() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (short_run(folder.path(), &[]), scenes(folder.path()));
    let path = |name: &str| folder.path().join(name);
    let scene = fs::read(data.join("val2017/000000000001.jpg")).unwrap();
    for name in ["photos", "others"] {
        fs::create_dir(path(name)).unwrap();
    }
    let inputs = ["photos/dog.jpg", "photos/1.jpg", "others/1.jpg", "photos/cat.bmp"].map(path);
    inputs.iter().for_each(|input| fs::write(input, &scene).unwrap());
    let predict = |inputs: &[std::path::PathBuf], out: &str| {
        let asked = PredictOptions { top_k: Some(1), out: Some(path(out)), ..PredictOptions::default() };
        let mut predictor = registry::find(MODEL).unwrap().family().predictor(MODEL, &run, &asked).unwrap();
        let inputs: Vec<String> = inputs.iter().map(|input| input.display().to_string()).collect();
        predictor.predict(&inputs, &|_, _| ())
    };
    let names = |folder: &str| {
        let names = fs::read_dir(path(folder)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<String>>()
    };
    assert!(predict(&inputs, "out").unwrap().iter().all(Result::is_ok));
    let expected = ["1-2.jpg", "1.jpg", "cat.jpg", "dog.jpg", "results.json"];
    assert!(names("out").iter().eq(expected.iter()), "{:?}", names("out"));
    let ids: Vec<i64> =
        json(&path("out/results.json")).iter().map(|result| result["image_id"].as_i64().unwrap()).collect();
    assert_eq!(ids, [2, 1, 3, 4]);

    let error = predict(&inputs, "photos").expect_err("inputs are refused");
    let text = error.to_string();
    assert!(text.contains("photos/dog.jpg would be overwritten; name another folder"), "{text}");
    assert_eq!(error.kind().exit_code(), 2);
    assert!(inputs.iter().all(|input| fs::read(input).unwrap() == scene) && !names("photos").contains("results.json"));
    assert!(predict(&inputs[3..], "photos").unwrap()[0].is_ok(), "nothing there has the name cat.jpg");
    assert!(predict(&[path("out/results.json")], "out").is_err());
    assert_eq!(json(&path("out/results.json")).len(), 4);

    let film = path("out/frame-000001.jpg");
    fs::write(&film, &scene).unwrap();
    let family = registry::find(MODEL).unwrap().family();
    let mut annotator = family.annotator(MODEL, &run, &PredictOptions::default()).unwrap().unwrap();
    let frames = ImageStream::new(&scene[..], &film, Exif::Apply);
    let output = FrameOutput::Folder(path("out"));
    let error = annotate_frames(&mut *annotator, frames, output, &StopSignal::new(), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("could be overwritten") && error.kind().exit_code() == 2, "{error}");
    assert!(fs::read(film).unwrap() == scene);
}

/// Takes as many bytes as it has room for.
struct Reader {
    taken: Vec<u8>,
    room: usize,
}

impl Write for Reader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.taken.len() + bytes.len() > self.room {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.taken.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn weights_go_to_the_names_of_effdet_and_back() {
    let folder = TempDir::new().unwrap();
    let run = short_run(folder.path(), &[]);
    let path = |name: &str| folder.path().join(name);
    let convert = |from: &Path, to: &Path, names| {
        let options = ConvertOptions { to: names, ..ConvertOptions::default() };
        assert_eq!(convert_weights(from, to, &options).unwrap().model, MODEL);
    };
    convert(&run, &path("timm"), "timm".parse().unwrap());
    convert(&path("timm"), &path("back"), "bessemer".parse().unwrap());
    assert!(fs::read(path("timm")).unwrap() == fs::read(path("back")).unwrap());
    let names: Vec<String> = read_safetensors(&path("timm")).unwrap().into_iter().map(|tensor| tensor.name).collect();
    for name in ["backbone.conv_stem.weight", "fpn.cell.0.fnode.0.combine.edge_weights", "box_net.predict.conv_pw.bias"]
    {
        assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
    }
}

/// A file is taken as its run was: without what it says it would be one of effdet, with classes that have no names.
#[test]
fn a_file_says_how_its_weights_were_trained() {
    let folder = TempDir::new().unwrap();
    let data = scenes(folder.path());
    let source = format!("data.source={}", data.display());
    let run = folder.path().join("run");
    let overrides =
        ["train.steps=1", &source, "model.edge_weights=signed", "detection.max_detections=3", "train.ema_decay=0.5"];
    train(&options(&run, &overrides)).unwrap();
    // Far from the run, so that nothing is found beside it.
    let elsewhere = TempDir::new().unwrap();
    let path = |name: &str| elsewhere.path().join(name);
    let (file, again, bare) = (path("file.safetensors"), path("again.safetensors"), path("bare.safetensors"));
    convert_weights(&run, &file, &ConvertOptions::default()).unwrap();
    convert_weights(&file, &again, &ConvertOptions::default()).unwrap();
    assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap());
    write_safetensors(&bare, &read_safetensors(&file).unwrap()).unwrap();
    let header = String::from_utf8_lossy(&fs::read(&file).unwrap()[..1 << 14]).into_owned();
    assert!(header.contains("max_detections = 3") && !header.contains(&*folder.path().to_string_lossy()), "{header}");

    let detected = |weights: &Path, out: &str| {
        let asked = PredictOptions { top_k: Some(5), out: Some(path(out)), ..PredictOptions::default() };
        let mut predictor = registry::find(MODEL).unwrap().family().predictor(MODEL, weights, &asked).unwrap();
        let input = data.join("val2017/000000000001.jpg").display().to_string();
        assert!(predictor.predict(&[input], &|_, _| ()).unwrap()[0].is_ok());
        json(&path(out).join("results.json"))
    };
    let (of_run, of_file) = (detected(&run, "1"), detected(&file, "2"));
    assert!(of_run.len() == 3 && of_run == of_file);
    assert_ne!(of_run, detected(&bare, "3"));
}

#[test]
fn streams_of_pictures_are_drawn_in() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (short_run(folder.path(), &[]), scenes(folder.path()));
    let files: Vec<Vec<u8>> = (1..=3).map(|id| fs::read(data.join(format!("val2017/{id:012}.jpg"))).unwrap()).collect();
    let stream = [turned(&files[0]), files[1].clone(), files[2].clone()].concat();
    let family = registry::find(MODEL).unwrap().family();
    let asked = PredictOptions { top_k: Some(4), ..PredictOptions::default() };
    let mut annotator = family.annotator(MODEL, &run, &asked).unwrap().unwrap();
    let mut annotate = |stream: &[u8], output: FrameOutput<'_>, stop: &StopSignal| {
        let mut names = Vec::new();
        let mut each = |prediction: &Prediction| {
            names.push(prediction.json["path"].as_str().unwrap().to_owned());
            Ok(())
        };
        let result = {
            let frames = ImageStream::new(stream, Path::new("camera"), Exif::Apply);
            annotate_frames(&mut *annotator, frames, output, stop, &mut each)
        };
        (result, names)
    };
    let go = StopSignal::new();

    let mut reader = Reader { taken: Vec::new(), room: usize::MAX };
    let (count, names) = annotate(&stream, FrameOutput::Stream(&mut reader), &go);
    assert_eq!(count.unwrap(), 3);
    assert_eq!(names, ["frame-000001.jpg", "frame-000002.jpg", "frame-000003.jpg"]);
    let out = folder.path().join("out");
    let (count, _) = annotate(&stream, FrameOutput::Folder(out.clone()), &go);
    assert_eq!(count.unwrap(), 3);
    let written: Vec<u8> = names.iter().flat_map(|name| fs::read(out.join(name)).unwrap()).collect();
    assert!(written == reader.taken, "the same pictures in the same order");
    let drawn = Image::read(&out.join("frame-000001.jpg")).unwrap();
    assert_eq!((drawn.width, drawn.height), (64, 96), "the orientation is applied");
    let ids = |folder: &Path| -> Vec<i64> {
        json(&folder.join("results.json")).iter().map(|result| result["image_id"].as_i64().unwrap()).collect()
    };
    assert_eq!(ids(&out), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);

    let cut = folder.path().join("cut");
    let (error, names) = annotate(&stream[..stream.len() - 9], FrameOutput::Folder(cut.clone()), &go);
    let error = error.unwrap_err();
    assert!(error.to_string().starts_with("camera, frame 3: truncated JPEG"), "{error}");
    assert_eq!((error.kind().exit_code(), names.len()), (2, 2));
    assert_eq!(ids(&cut), [1, 1, 1, 1, 2, 2, 2, 2], "a whole file of what was before");

    let mut reader = Reader { taken: Vec::new(), room: written.len() - 1 };
    let (count, names) = annotate(&stream, FrameOutput::Stream(&mut reader), &go);
    assert_eq!((count.unwrap(), names.len()), (2, 2), "a reader that has gone is no error");
    go.raise();
    let stopped = folder.path().join("stopped");
    assert_eq!(annotate(&stream, FrameOutput::Folder(stopped.clone()), &go).0.unwrap(), 0);
    assert!(ids(&stopped).is_empty());
}

#[test]
fn images_without_annotations_have_detections_but_no_scores() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (short_run(folder.path(), &[]), scenes(folder.path()));
    let annotations = data.join("annotations/instances_val2017.json");
    let mut instances: Value = serde_json::from_slice(&fs::read(&annotations).unwrap()).unwrap();
    let categories = instances["categories"].as_array_mut().unwrap();
    categories.iter_mut().zip(101..).for_each(|(category, id)| category["id"] = Value::from(id));
    instances.as_object_mut().unwrap().remove("annotations");
    fs::write(data.join("annotations/image_info_test-dev2017.json"), instances.to_string()).unwrap();
    let out = folder.path().join("answers");
    let detect = |part: &str| -> Result<EvalReport, TrainError> {
        let unannotated = Some(part.to_owned());
        let options =
            EvaluateOptions { batch_size: 2, out: Some(out.clone()), unannotated, pictures: 2, ..Default::default() };
        evaluate(MODEL, &run, &data, &options)
    };
    let error = detect("test-dev2017").unwrap_err().to_string();
    assert!(error.contains("test-dev2017: no such folder"), "{error}");
    fs::rename(data.join("val2017"), data.join("test2017")).unwrap();
    let error = detect("test-dev2016").unwrap_err().to_string();
    assert!(error.contains("annotations/image_info_test-dev2016.json: no such file"), "{error}");
    let report = detect("test-dev2017").unwrap();
    assert!(report.metrics.is_empty() && report.samples == 3, "{:?}", report.metrics);
    assert!(report.notes.iter().any(|note| note.contains("no scores")), "{:?}", report.notes);
    let results = json(&out.join("detections_test-dev2017_efficientdet-tiny_results.json"));
    assert_eq!(results.len() as u64, report.counts["detections"]);
    let keys: Vec<&String> = results[0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["image_id", "category_id", "bbox", "score"]);
    let of_category = |result: &Value| result["category_id"].as_i64().unwrap();
    assert!(results.iter().all(|result| of_category(result) > 100), "ids of that file, not those of the run");
    let pictures = [0, 1, 2].map(|number| out.join(format!("compared-{number:03}.jpg")).exists());
    assert_eq!(pictures, [true, true, false]);
}

/// Changes the annotations of evaluation.
fn annotate(data: &Path, change: impl FnOnce(&mut Value)) {
    let path = data.join("annotations/instances_val2017.json");
    let mut instances = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut instances);
    fs::write(&path, instances.to_string()).unwrap();
}

fn category<'a>(instances: &'a mut Value, name: &str) -> &'a mut Value {
    let categories = instances["categories"].as_array_mut().unwrap();
    categories.iter_mut().find(|category| category["name"] == name).unwrap()
}

#[test]
fn categories_are_the_classes_of_their_names() {
    let folder = TempDir::new().unwrap();
    let (run, data, out) = (short_run(folder.path(), &[]), scenes(folder.path()), folder.path().join("out"));
    let judge = || {
        let options = EvaluateOptions { batch_size: 2, out: Some(out.clone()), ..EvaluateOptions::default() };
        evaluate(MODEL, &run, &data, &options)
    };
    let category_ids = || json(&out.join("bbox.json")).iter().map(|found| found["category_id"].clone()).collect();
    let as_trained = judge().unwrap();
    let ids_as_trained: Vec<Value> = category_ids();
    let told = |report: &EvalReport, part: &str| report.notes.iter().filter(|note| note.contains(part)).count();
    assert_eq!(told(&as_trained, "categories of the evaluation set"), 0, "{:?}", as_trained.notes);

    // The same categories in another order, with other ids.
    annotate(&data, |instances| {
        let turned = |id: &mut Value| *id = Value::from(200 - id.as_i64().unwrap());
        for (list, id) in [("categories", "id"), ("annotations", "category_id")] {
            instances[list].as_array_mut().unwrap().iter_mut().for_each(|entry| turned(&mut entry[id]));
        }
    });
    let report = judge().unwrap();
    assert_eq!((&report.metrics, &report.counts), (&as_trained.metrics, &as_trained.counts));
    let ids: Vec<Value> = category_ids();
    let back = ids.iter().map(|id| Value::from(200 - id.as_i64().unwrap()));
    assert_eq!(back.collect::<Vec<_>>(), ids_as_trained);

    // One that the run does not have, and one that it has and the set has not.
    let known = class_names(&run)[1].clone();
    annotate(&data, |instances| category(instances, &known)["name"] = Value::from("gnu"));
    let report = judge().unwrap();
    let note = "categories of the evaluation set that are no class of the model, so that their objects are not found, 1 of 10: ";
    assert_eq!(told(&report, note), 1, "{:?}", report.notes);
    assert_eq!(
        told(&report, &format!("gnu; its classes that are no categories there: {known}")),
        1,
        "{:?}",
        report.notes
    );
    assert_eq!(report.counts["objects"], as_trained.counts["objects"], "they count as missed");
    assert!(category_ids().iter().all(|id: &Value| *id != 198), "and nothing is one");

    annotate(&data, |instances| {
        instances["categories"].as_array_mut().unwrap().iter_mut().for_each(|one| one["name"] = Value::from("gnu"));
    });
    let error = judge().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("none of its categories is a class of the model: gnu, gnu") && text.contains(&known),
        "{text}"
    );
    assert_eq!(error.kind().exit_code(), 2);
}

/// The names of the classes of a run.
fn class_names(run: &Path) -> Vec<String> {
    json(&run.join("categories.json")).iter().map(|class| class["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_scores_cannot_show_is_told() {
    let folder = TempDir::new().unwrap();
    let data = scenes(folder.path());
    let annotations = data.join("annotations/instances_val2017.json");
    let mut instances: Value = serde_json::from_slice(&fs::read(&annotations).unwrap()).unwrap();
    let kept = instances["annotations"][0]["category_id"].clone();
    instances["annotations"].as_array_mut().unwrap().retain(|object| object["category_id"] == kept);
    fs::write(&annotations, instances.to_string()).unwrap();
    let source = format!("data.source={}", data.display());
    let run = folder.path().join("run");
    let mut options = options(&run, &["train.steps=1", "detection.score_floor=0.999", "eval.pictures=0", &source]);
    options.recipe.data.train_samples = None;
    options.recipe.data.eval_samples = None;
    train(&options).unwrap();
    let warnings = warnings(&run);
    let told = |part: &str| warnings.iter().filter(|warning| warning.contains(part)).count();
    assert_eq!(told("trained classes without an object in the validation set"), 1, "{warnings:?}");
    assert_eq!(
        told("nothing was detected: no score is above detection.score_floor, which is 0.999"),
        1,
        "{warnings:?}"
    );
    assert_eq!(json(&run.join("predictions/bbox.json")), Vec::<Value>::new());
    assert!(!run.join("predictions/compared-000.jpg").exists());

    // Sample pictures of a set that has got a category which the run does not know.
    annotate(&data, |instances| {
        let more = serde_json::json!({ "id": 11, "name": "gnu" });
        instances["categories"].as_array_mut().unwrap().push(more);
    });
    let family = registry::find(MODEL).unwrap().family();
    let kept = family.keep_samples(&RunDir::open(&run).unwrap(), 2, &options.compute).unwrap();
    assert!(kept.len() == 2 && kept.iter().all(|sample| run.join("predictions").join(&sample.picture).is_file()));
}

#[test]
fn the_weights_of_a_classifier_begin_its_backbone() {
    const BACKBONE: &str = "backbone.";
    let folder = TempDir::new().unwrap();
    let other = short_run(&folder.path().join("other"), &["train.seed=9", "eval.every_steps=", "train.ema_decay="]);
    let trained = last(&other).model;
    let of_backbone = |tensor: &&NamedTensor<'_>| tensor.name.starts_with(BACKBONE);
    let renamed = |tensor: &NamedTensor<'static>| NamedTensor {
        name: tensor.name[BACKBONE.len()..].to_owned(),
        ..tensor.clone()
    };
    // What timm writes: layers behind the features, and counts of batches.
    let mut classifier: Vec<NamedTensor<'_>> = trained.iter().filter(of_backbone).map(renamed).collect();
    assert!(classifier.iter().any(|tensor| tensor.name == "blocks.0.0.conv_dw.weight"));
    for name in ["conv_head.weight", "bn2.weight", "bn2.running_mean", "classifier.bias"] {
        classifier.push(NamedTensor::from_f32(name, vec![10], &[0.5; 10]).unwrap());
    }
    classifier
        .push(NamedTensor::new("bn1.num_batches_tracked", Dtype::I64, vec![], 7i64.to_le_bytes().to_vec()).unwrap());
    let file = folder.path().join("classifier.safetensors");
    write_safetensors(&file, &classifier).unwrap();

    let slow = ["train.steps=1", "eval.every_steps=", "schedule.base_lr=1e-30", "schedule.warmup_lr=0"];
    let run = folder.path().join("begun");
    train(&options(&run, &slow).with_start(StartRecipe::weights(&file))).unwrap();
    let told = |run: &Path, text: &str| warnings(run).iter().any(|warning| warning.contains(text));
    assert!(told(&run, "has no weights for the feature pyramid and both heads: they are drawn at random"));
    assert!(!told(&run, "normalise_twice"));
    let twice = folder.path().join("twice");
    let overrides = [&slow[..], &["model.normalise_twice=true"]].concat();
    train(&options(&twice, &overrides).with_start(StartRecipe::weights(&file))).unwrap();
    assert!(told(&twice, "--set model.normalise_twice=false fits them"));
    // Of a whole detector all that it was trained with.
    let whole = folder.path().join("whole");
    let overrides = [&slow[..], &["model.edge_weights=signed", "detection.anchor_scale=3.0"]].concat();
    train(&options(&whole, &overrides).with_start(StartRecipe::weights(&other))).unwrap();
    assert!(told(&whole, "--set model.edge_weights=positive fits them"), "{:?}", warnings(&whole));
    assert!(told(&whole, "--set detection.anchor_scale=4.0 fits them"));
    assert_eq!(warnings(&whole).iter().filter(|warning| warning.contains("fits them")).count(), 2);
    let begun = last(&run).model;
    let (mut equal, mut drawn) = (0, 0);
    for (tensor, other) in begun.iter().zip(&trained).filter(|(tensor, _)| tensor.name.ends_with(".weight")) {
        assert_eq!(tensor.name, other.name);
        if of_backbone(&tensor) {
            assert!(tensor == other, "{}", tensor.name);
            equal += 1;
        } else {
            drawn += usize::from(tensor != other);
        }
    }
    assert!(equal > 30 && drawn > 30, "{equal} of the classifier, {drawn} drawn from the seed");
}
