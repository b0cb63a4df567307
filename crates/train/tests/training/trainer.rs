//! Whole training runs in this process.

use crate::common::ranks::trained;
use crate::common::{TOTAL_STEPS, assert_same_tensors, last, new_run, resumed, turned};
use bessemer_data::shapes::ShapesFolder;
use bessemer_data::{Exif, FileFormat, Image};
use bessemer_ir::passes::recompute::Recompute;
use bessemer_train::events::{EventBody, Status, read_events};
use bessemer_train::recipe::StartRecipe;
use bessemer_train::tasks::classification::{CLASSES_FILE, InferOptions, Prediction, infer};
use bessemer_train::{
    ErrorKind, EvaluateOptions, Recipe, RunDir, StopSignal, TrainError, TrainOptions, TrainReport, evaluate, train,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{sleep, spawn};
use std::time::Duration;
use tempfile::TempDir;

/// `(step, value)`
type Points = Vec<(u64, f64)>;

/// Loss of every step, and top-1 accuracy of every evaluation.
fn history(run: &Path) -> (Points, Points) {
    let (mut losses, mut accuracies) = (Vec::new(), Vec::new());
    for event in read_events(&run.join("events.jsonl")).unwrap() {
        let step = event.header.step.unwrap_or(0);
        match event.body {
            EventBody::Step(info) => losses.push((step, info.loss)),
            EventBody::Eval(info) => accuracies.push((step, info.metrics["top1"])),
            _ => {}
        }
    }
    (losses, accuracies)
}

fn end_status(run: &Path) -> Status {
    match read_events(&run.join("events.jsonl")).unwrap().pop().unwrap().body {
        EventBody::End(info) => info.status,
        other => panic!("the last event is {other:?}"),
    }
}

#[test]
fn a_resumed_run_is_the_run_that_never_stopped() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    let report = train(&new_run(&whole, &[])).unwrap();
    assert_eq!((report.steps, report.samples), (TOTAL_STEPS, 8 * TOTAL_STEPS));
    assert!(report.best.is_some() && report.metrics.contains_key("loss"));

    // In the middle of an epoch, at its end, and twice at one place.
    for (steps, is_new) in [(7, true), (3, false), (0, false), (2, false)] {
        let mut options = if is_new { new_run(&pieces, &[]) } else { resumed(&pieces, &[]) };
        options.run_steps = Some(steps);
        let error = train(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        assert_eq!(end_status(&pieces), Status::Interrupted);
    }
    let resumed_report = train(&resumed(&pieces, &[])).unwrap();
    assert_eq!((resumed_report.steps, resumed_report.samples), (report.steps, report.samples));
    assert_eq!((resumed_report.metrics, resumed_report.best), (report.metrics, report.best));
    assert_same_tensors(&last(&whole), &last(&pieces));
    assert_eq!(last(&whole).state, last(&pieces).state);
    assert_eq!(history(&whole), history(&pieces));
    assert_eq!(history(&whole).1.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [5, 10, 15]);
    assert_eq!(end_status(&whole), Status::Done);
}

#[test]
fn evaluations_begin_after_the_epochs_that_are_asked_for() {
    let folder = TempDir::new().unwrap();
    let evaluated = |from: u64| {
        let run = folder.path().join(from.to_string());
        train(&new_run(&run, &[&format!("eval.from_epoch={from}")])).unwrap();
        history(&run).1.into_iter().map(|(step, _)| step).collect::<Vec<_>>()
    };
    assert_eq!(evaluated(2), [10, 15]);
    assert_eq!(evaluated(9), [15], "the one at the end");
}

#[test]
fn an_overflow_in_fp16_halves_the_scale_and_leaves_the_step_out() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    // No gradient of this network survives the first scale in `f16`.
    let overrides = ["precision.compute=fp16", "precision.loss_scale=16777216", "precision.loss_scale_growth_steps=3"];
    let report = train(&new_run(&whole, &overrides)).unwrap();
    assert_eq!(report.steps, TOTAL_STEPS);
    let steps: Vec<_> = read_events(&whole.join("events.jsonl"))
        .unwrap()
        .into_iter()
        .filter_map(|event| if let EventBody::Step(info) = event.body { Some(info) } else { None })
        .collect();
    let overflowed: Vec<bool> = steps.iter().map(|step| !step.grad_norm.unwrap().is_finite()).collect();
    assert!(overflowed[0] && overflowed.contains(&false), "{overflowed:?}");
    for (pair, overflow) in steps.windows(2).zip(&overflowed) {
        let (scale, next) = (pair[0].loss_scale.unwrap(), pair[1].loss_scale.unwrap());
        let follows = if *overflow { next == scale / 2.0 } else { next == scale || next == 2.0 * scale };
        assert!(
            follows,
            "{scale} {next} {overflowed:?} {:?}",
            steps.iter().map(|s| (s.loss_scale, s.grad_norm)).collect::<Vec<_>>()
        );
    }
    assert!(steps.iter().all(|step| step.loss.is_finite()));

    let mut options = new_run(&pieces, &overrides);
    options.run_steps = Some(7);
    train(&options).unwrap_err();
    train(&resumed(&pieces, &overrides)).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));
}

#[test]
fn a_fixed_loss_scale_that_always_overflows_ends_the_run() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let error = train(&new_run(&run, &["precision.compute=fp16", "precision.loss_scale=16777216"])).unwrap_err();
    assert!(matches!(error, TrainError::FixedLossScale { step: 5, skipped: 5, .. }), "{error}");
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::Runtime && text.contains("precision.loss_scale_growth_steps"), "{text}");
    assert_eq!((end_status(&run), history(&run).0.len()), (Status::Failed, 4));
}

#[test]
fn steps_of_several_micro_batches_resume_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    let overrides = ["train.batch_size=4", "train.accumulation=3", "train.steps=5"];
    let report = train(&new_run(&whole, &overrides)).unwrap();
    assert_eq!((report.steps, report.samples), (5, 5 * 12));
    let mut options = new_run(&pieces, &overrides);
    options.run_steps = Some(3);
    train(&options).unwrap_err();
    train(&resumed(&pieces, &overrides)).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));
    assert_eq!(last(&whole).state, last(&pieces).state);
    assert_eq!(last(&whole).state.sampler.epoch * 10 + last(&whole).state.sampler.batch, 15);
    assert_eq!(history(&whole), history(&pieces));
}

#[test]
fn a_phase_goes_on_with_weights_and_moments_under_its_own_schedule() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("first");
    train(&new_run(&first, &["train.steps=4", "train.mixup_alpha=0"])).unwrap();
    let begun = |name: &str, start: Option<StartRecipe>| {
        let run = folder.path().join(name);
        let mut options = new_run(&run, &["train.steps=3", "train.mixup_alpha=0", "train.seed=9"]);
        options.recipe.start = start.unwrap_or(options.recipe.start);
        train(&options).unwrap();
        (history(&run).0, last(&run))
    };
    let (phase, end) = begun("phase", Some(StartRecipe::init_from(&first)));
    let (weights, _) = begun("weights", Some(StartRecipe::weights(first.join("checkpoints/step-000004"))));
    let (fresh, _) = begun("fresh", None);
    assert_eq!(phase[0], weights[0], "the same weights");
    assert_ne!(phase[0], fresh[0]);
    assert_ne!(phase[1], weights[1], "moments go on as well");
    assert_eq!((end.state.step, end.state.schedule_step), (3, 3));

    // Its recipe says what it began with: again, and where it dies before its first checkpoint.
    let (run, again) = (folder.path().join("phase"), folder.path().join("again"));
    let recipe = Recipe::load(run.join("recipe.toml").to_str().unwrap(), &[]).unwrap();
    train(&TrainOptions { recipe, ..new_run(&again, &[]) }).unwrap();
    assert_same_tensors(&last(&again), &end);
    fs::remove_dir_all(again.join("checkpoints")).unwrap();
    fs::create_dir(again.join("checkpoints")).unwrap();
    let recipe = RunDir::recipe_of(&again).unwrap();
    train(&TrainOptions { recipe, ..resumed(&again, &[]) }).unwrap();
    assert_same_tensors(&last(&again), &end);

    let nowhere = StartRecipe::init_from(folder.path().join("nowhere"));
    let error = train(&new_run(&folder.path().join("x"), &[]).with_start(nowhere));
    assert!(error.unwrap_err().to_string().contains("nowhere"));
}

#[test]
fn precisions_train_alike() {
    let folder = TempDir::new().unwrap();
    let losses = ["fp32", "bf16", "fp16"].map(|precision| {
        let run = folder.path().join(precision);
        let overrides = [format!("precision.compute={precision}"), "train.mixup_alpha=0".to_string()];
        train(&new_run(&run, &overrides.each_ref().map(String::as_str))).unwrap();
        history(&run).0
    });
    for (index, (step, loss)) in losses[0].iter().enumerate() {
        let others = [losses[1][index].1, losses[2][index].1];
        // A small network at a high rate: roundings grow from step to step.
        let allowed = if *step <= 5 { 0.02 } else { 0.3 };
        assert!(others.iter().all(|other| (other - loss).abs() < allowed * loss), "step {step}: {loss} {others:?}");
    }
    assert!(losses[0] != losses[1] && losses[0] != losses[2], "16 bits are not 32");
}

#[test]
fn recomputing_gives_the_same_losses() {
    let folder = TempDir::new().unwrap();
    let histories = Recompute::ALL.map(|recompute| {
        let run = folder.path().join(recompute.name());
        let mut options = new_run(&run, &["train.steps=6"]);
        options.compute.compile.recompute = recompute;
        train(&options).unwrap();
        history(&run).0
    });
    for other in &histories[1..] {
        for ((step, a), (_, b)) in histories[0].iter().zip(other) {
            assert!((a - b).abs() < 1e-4 * a, "step {step}: {a} {b}");
        }
    }
}

#[test]
fn threads_and_workers_change_nothing() {
    let folder = TempDir::new().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    train(&new_run(&one, &["train.steps=6"])).unwrap();
    let mut options = new_run(&other, &["train.steps=6", "loader.workers=4", "loader.prefetch=3"]);
    options.compute.device.threads = 2;
    train(&options).unwrap();
    assert_same_tensors(&last(&one), &last(&other));
    assert_eq!(history(&one), history(&other));

    let third = folder.path().join("third");
    train(&new_run(&third, &["train.steps=6", "train.seed=6"])).unwrap();
    assert!(last(&one).model != last(&third).model, "another seed trains another model");
}

#[test]
fn a_stop_that_comes_first_leaves_a_run_that_starts_anew() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let options = new_run(&run, &["train.steps=2"]);
    options.stop.raise();
    assert!(matches!(train(&options), Err(TrainError::Interrupted { step: 0, checkpoint: None })));
    let report = train(&resumed(&run, &["train.steps=2"])).unwrap();
    assert_eq!(report.steps, 2);
}

/// The files of a folder and of those in it, with their content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| if path.is_dir() { files(&path) } else { [(path.clone(), fs::read(path).unwrap())].into() })
        .collect()
}

#[test]
fn a_finished_run_stays_as_it_is() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    // The best evaluation is not the last one.
    let overrides = ["schedule.kind=constant", "schedule.base_lr=0.5", "train.steps=6", "eval.every_steps=1"];
    let report = train(&new_run(&run, &overrides)).unwrap();
    assert!(!report.was_finished && report.best.as_ref().unwrap().step < report.steps, "{:?}", report.best);
    assert_eq!(last(&run).state.metrics, report.metrics);
    let before = files(&run);
    let again = train(&resumed(&run, &overrides)).unwrap();
    assert_eq!(again, TrainReport { was_finished: true, ..report });
    assert!(files(&run) == before);

    let longer = [&overrides[..], &["train.steps=7"]].concat();
    let report = train(&resumed(&run, &longer)).unwrap();
    assert_eq!((report.steps, report.was_finished), (7, false));
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_at_the_last_checkpoint() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    let overrides = [
        "schedule.kind=constant",
        "schedule.warmup_epochs=0",
        "schedule.base_lr=1000",
        "train.clip_norm=",
        "train.epochs=30",
    ];
    let wild =
        [&overrides[..], &["optimizer.weight_decay=1", "optimizer.decay_exclude=none", "checkpoint.every_steps=3"]]
            .concat();
    let error = train(&new_run(&run, &wild)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Runtime);
    let TrainError::NonFinite(failure) = &error else { panic!("{error}") };
    let found = failure.found.as_ref().expect("a node is named");
    let text = error.to_string();
    assert!(
        text.contains(&found.node.op)
            && found.micro_batch.is_none()
            && text.contains("learning rate 1000")
            && text.contains("schedule.base_lr"),
        "{text}"
    );
    let events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert_eq!(events.matches("schedule.warmup_epochs or train.clip_norm usually helps").count(), 1);
    assert_eq!(end_status(&run), Status::Failed);
    let kept = last(&run);
    assert!(kept.state.step < failure.step && kept.state.step.is_multiple_of(3), "{}", kept.state.step);
    assert!(kept.model.iter().all(|tensor| tensor.first_non_finite().is_none()));
}

#[test]
fn the_micro_batch_is_named_that_is_no_number() {
    let folder = TempDir::new().unwrap();
    let overrides = [
        "schedule.kind=constant",
        "schedule.warmup_epochs=0",
        "schedule.base_lr=1000",
        "train.clip_norm=",
        "train.epochs=60",
        "eval.every_epochs=",
        "train.batch_size=4",
        "train.accumulation=3",
        "optimizer.weight_decay=1",
        "optimizer.decay_exclude=none",
    ];
    let error = train(&new_run(&folder.path().join("run"), &overrides)).unwrap_err();
    let TrainError::NonFinite(failure) = &error else { panic!("{error}") };
    let found = failure.found.as_ref().expect("a node is named");
    assert_eq!(found.micro_batch, Some(1), "weights as wild as these spoil the first already");
    assert!(error.to_string().contains("in micro-batch 1, "), "{error}");
}

/// Raises the signal when the log of `run` has its first step.
fn stop_after_a_step(run: PathBuf, stop: StopSignal) {
    let has_step = || {
        let events = read_events(&run.join("events.jsonl")).unwrap_or_default();
        events.iter().any(|event| matches!(event.body, EventBody::Step(_)))
    };
    while !has_step() {
        sleep(Duration::from_millis(5));
    }
    stop.raise();
}

#[test]
fn a_step_is_stopped_between_its_micro_batches() {
    let folder = TempDir::new().unwrap();
    let (whole, pieces) = (folder.path().join("whole"), folder.path().join("pieces"));
    // Steps of a second, with nothing between them in which the run could be stopped.
    let overrides = [
        "train.batch_size=2",
        "train.accumulation=100",
        "train.steps=2",
        "train.ema_decay=",
        "eval.every_epochs=",
        "checkpoint.every_steps=",
    ];
    train(&new_run(&whole, &overrides)).unwrap();
    let options = new_run(&pieces, &overrides);
    let (run, stop) = (pieces.clone(), options.stop.clone());
    let watch = spawn(move || stop_after_a_step(run, stop));
    let error = train(&options).unwrap_err();
    watch.join().unwrap();
    assert!(matches!(&error, TrainError::Interrupted { step: 1, checkpoint: Some(_) }), "{error}");
    let state = last(&pieces).state;
    assert_eq!((state.step, state.sampler.epoch * 21 + state.sampler.batch), (1, 100), "nothing of the second step");
    train(&resumed(&pieces, &overrides)).unwrap();
    assert_same_tensors(&last(&whole), &last(&pieces));
    assert_eq!(last(&whole).state, last(&pieces).state);
    assert_eq!(history(&whole), history(&pieces));
}

#[test]
fn other_settings_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let run = folder.path().join("run");
    train(&new_run(&run, &["train.steps=1"])).unwrap();
    let error = train(&resumed(&run, &["train.steps=1", "train.batch_size=4", "data.train_samples=50"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let text = error.to_string();
    for part in ["train.batch_size: 8 in the checkpoint, 4 now", "data identity", "data.train_samples"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("optimizer"), "{text}");

    let error = train(&new_run(&run, &[])).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("holds a run already"), "{error}");
    let held = RunDir::open(&run).unwrap();
    let error = train(&resumed(&run, &["train.steps=1"])).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("another process"), "{error}");
    drop(held);
}

fn write_pictures(root: &Path) {
    ShapesFolder { seed: 1, train: 24, val: 11, size: 20, format: FileFormat::Png }.write(root).unwrap();
}

#[test]
fn bad_data_and_recipes_are_refused_before_a_folder_is_made() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (folder.path().join("run"), folder.path().join("data"));
    let refused = |overrides: &[&str]| {
        let error = train(&new_run(&run, overrides)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(!run.exists());
        error.to_string()
    };
    let source = format!("data.source={}", data.display());
    let text = refused(&[&source]);
    assert!(text.contains("no such folder") && text.contains("train/CLASS"), "{text}");
    write_pictures(&data);
    let text = refused(&[&source, "model.num_classes=7"]);
    assert!(text.contains("model.num_classes is 7") && text.contains("10 classes"), "{text}");
    fs::create_dir(data.join("train/empty")).unwrap();
    assert!(refused(&[&source]).contains("train/empty: no images in it"));
    assert!(refused(&["train.batch_size=44"]).contains("batch size is 44"));
    assert!(refused(&["train.drop_last=false"]).contains("43 samples"));
    assert!(refused(&["data.source="]).contains("--data"));
}

#[test]
fn bad_samples_stop_the_run_or_are_left_out() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    write_pictures(&data);
    let victim = fs::read_dir(data.join("train/circle")).unwrap().next().unwrap().unwrap().path();
    fs::write(&victim, "no picture").unwrap();
    let source = format!("data.source={}", data.display());
    let strict = folder.path().join("strict");
    let error = train(&new_run(&strict, &[&source, "train.epochs=1"])).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(victim.to_str().unwrap()), "{error}");
    assert_eq!(end_status(&strict), Status::Failed);

    let lenient = folder.path().join("lenient");
    let overrides = [&source, "train.epochs=1", "loader.on_bad_sample=skip"];
    assert_eq!(train(&new_run(&lenient, &overrides)).unwrap().skipped, 1);
    let named = read_events(&lenient.join("events.jsonl"))
        .unwrap()
        .into_iter()
        .any(|event| matches!(event.body, EventBody::Warning(info) if info.message.contains(victim.to_str().unwrap())));
    assert!(named, "the sample that was left out is listed");

    // On other ranks, too.
    for other in fs::read_dir(data.join("train/circle")).unwrap() {
        fs::write(other.unwrap().path(), "no picture").unwrap();
    }
    let count = fs::read_dir(data.join("train/circle")).unwrap().count();
    let shared = folder.path().join("shared");
    let overrides = [&source, "train.steps=12", "train.accumulation=2", "loader.on_bad_sample=skip"];
    assert_eq!(trained(2, |_| new_run(&shared, &overrides)).skipped, count);
    let events = read_events(&shared.join("events.jsonl")).unwrap();
    let left_out = events.into_iter().filter_map(|event| match event.body {
        EventBody::Warning(info) if info.message.contains("left out sample") => Some(info.message),
        _ => None,
    });
    let (of_second, of_first): (Vec<String>, Vec<String>) =
        left_out.partition(|message| message.starts_with("rank 1: left out sample"));
    assert!(!of_first.is_empty() && !of_second.is_empty(), "{of_first:?} and {of_second:?}");
}

#[test]
fn a_bad_sample_of_an_evaluation_stops_it_and_no_step_is_lost() {
    let folder = TempDir::new().unwrap();
    let (data, run) = (folder.path().join("data"), folder.path().join("run"));
    write_pictures(&data);
    let victim = fs::read_dir(data.join("val/circle")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&victim).unwrap();
    fs::write(&victim, "no picture").unwrap();
    let source = format!("data.source={}", data.display());
    let overrides = [&source, "train.epochs=1", "loader.on_bad_sample=skip"];
    let error = train(&new_run(&run, &overrides)).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
    assert!(text.contains(victim.to_str().unwrap()) && text.contains("an evaluation counts every sample"), "{text}");
    let saved = fs::read_to_string(run.join("checkpoints/latest")).unwrap();

    fs::write(&victim, whole).unwrap();
    let report = train(&resumed(&run, &overrides)).unwrap();
    assert_eq!(saved.trim(), format!("step-{:06}", report.steps));
    assert!(report.metrics.contains_key("top1"), "{:?}", report.metrics);
}

#[test]
fn a_trained_run_evaluates_and_classifies_as_it_did() {
    let folder = TempDir::new().unwrap();
    let (run, data) = (folder.path().join("run"), folder.path().join("data"));
    write_pictures(&data);
    let source = format!("data.source={}", data.display());
    let report = train(&new_run(&run, &[&source, "train.epochs=2", "checkpoint.keep=1"])).unwrap();

    let latest = run.join("checkpoints").join(fs::read_to_string(run.join("checkpoints/latest")).unwrap().trim());
    let options = EvaluateOptions { batch_size: 4, ..EvaluateOptions::default() };
    let evaluated = evaluate("resnet20-cifar", &latest, &data, &options).unwrap();
    assert_eq!(evaluated.samples, 11);
    for (name, value) in evaluated.metrics.clone() {
        assert!((value - report.metrics[&name]).abs() < 1e-5, "{name}: {value} and {}", report.metrics[&name]);
    }

    let drawn = evaluate("resnet20-cifar", &latest, Path::new("shapes"), &options).unwrap();
    assert_eq!(drawn.samples, 12);
    let file = latest.join("model.safetensors");
    let error = evaluate("resnet20-cifar", &file, Path::new("shapes"), &options).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("needs weights of a run"), "{error}");

    let classify = |inputs: &[&Path]| {
        let inputs: Vec<String> = inputs.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
        infer("resnet20-cifar", &run, &inputs, &InferOptions::default(), &|_, _| {}).unwrap()
    };
    let stars = data.join("val/star");
    let pictures: Vec<_> = fs::read_dir(&stars).unwrap().map(|entry| entry.unwrap().path()).collect();
    let predictions = classify(&[&stars, &stars.join("*.png")]);
    let names = fs::read_to_string(run.join(CLASSES_FILE)).unwrap();
    assert_eq!(predictions.len(), 2 * pictures.len(), "those of the folder and of the pattern");
    for prediction in predictions.into_iter().map(Result::unwrap) {
        assert_eq!(prediction.classes.len(), 5);
        assert!(prediction.classes.iter().all(|score| names.lines().any(|name| name == score.name)));
        assert!(prediction.classes.is_sorted_by(|a, b| a.probability >= b.probability));
    }

    let [stored, upright] = ["stored.jpg", "upright.png"].map(|name| folder.path().join(name));
    let jpeg = Image::read(&pictures[0]).unwrap().encode(&stored, FileFormat::Jpeg(90)).unwrap();
    fs::write(&stored, turned(&jpeg)).unwrap();
    Image::read_oriented(&stored, Exif::Apply).unwrap().write(&upright, FileFormat::Png).unwrap();
    let predictions = classify(&[&stored, &upright]);
    let [stored, upright] = [0, 1].map(|index| &predictions[index].as_ref().unwrap().classes);
    assert_eq!(stored, upright, "pictures are turned as their EXIF orientation says");

    let error = evaluate("resnet32-cifar", &run, &data, &options).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("holds resnet20-cifar"), "{error}");

    // Some of the classes, in folders alone, have the labels that they had in training.
    let some = folder.path().join("some");
    fs::create_dir(&some).unwrap();
    fs::rename(&stars, some.join("star")).unwrap();
    let judged = evaluate("resnet20-cifar", &run, &some, &options).unwrap();
    let is_star = |prediction: &Result<Prediction, _>| prediction.as_ref().unwrap().classes[0].name == "star";
    let right = classify(&[&some.join("star")]).iter().filter(|prediction| is_star(prediction)).count();
    assert_eq!(judged.samples, pictures.len() as u64);
    assert!(
        (judged.metrics["top1"] - right as f64 / pictures.len() as f64).abs() < 1e-12,
        "{right}, {:?}",
        judged.metrics
    );
    fs::rename(some.join("star"), some.join("comet")).unwrap();
    let error = evaluate("resnet20-cifar", &run, &some, &options).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Usage && error.to_string().contains("folder of the data set is comet"),
        "{error}"
    );
}
