//! Runs of several ranks, which are threads here and exchange messages through memory, beside runs of one.

use crate::common::ranks::{End, in_group, train_by_wire, train_ranks, trained};
use crate::common::text::{losses, text};
use crate::common::{assert_same_tensors, last, last_folder, new_run, run_of};
use bessemer_data::FileFormat;
use bessemer_data::shapes::ShapesFolder;
use bessemer_ir::ops::collective::Wire;
use bessemer_ir::passes::buckets::BucketOptions;
use bessemer_ir::plan::StateTensor;
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{RunError, StateLayout, StateSnapshot, StateStore};
use bessemer_ir::shape::TensorType;
use bessemer_train::checkpoint::{Checkpoint, load_checkpoint};
use bessemer_train::events::{EventBody, StepInfo, read_events};
use bessemer_train::{ErrorKind, EvaluateOptions, RunFolder, TrainError, TrainOptions, evaluate, train, train_in};
use bessemer_weights::NamedTensor;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const BERT: &str = include_str!("../fixtures/ranks/bert.toml");
const ELECTRA: &str = include_str!("../fixtures/ranks/electra.toml");
const MASKS: &str = include_str!("../fixtures/ranks/masks.toml");
const DETECTOR: &str = include_str!("../fixtures/ranks/detector.toml");

fn statistics_apart<'a>(tensors: &'a [NamedTensor<'a>]) -> (Vec<&'a NamedTensor<'a>>, Vec<&'a NamedTensor<'a>>) {
    tensors.iter().partition(|tensor| tensor.name.contains("running_") || tensor.name.contains("num_batches"))
}

/// All but running statistics, which ranks average and one rank updates batch by batch.
#[track_caller]
fn assert_same_but_statistics(a: &Checkpoint<'_>, b: &Checkpoint<'_>) {
    let pairs = [(&a.model, &b.model), (&a.optimizer, &b.optimizer)];
    for (a, b) in pairs.into_iter().chain(a.ema.as_ref().zip(b.ema.as_ref())) {
        let ((statistics, a), (_, b)) = (statistics_apart(a), statistics_apart(b));
        assert_eq!(a.len(), b.len());
        a.iter().zip(&b).for_each(|(a, b)| assert!(a == b, "{} differs", a.name));
        let _ = statistics;
    }
    assert_eq!(a.state.sampler, b.state.sampler);
}

#[test]
fn ranks_of_one_micro_batch_have_the_bits_of_one_rank() {
    let folder = TempDir::new().unwrap();
    let data = text(folder.path());
    let text = format!("data.source={}", data.display());
    // Of random words there are so many that the norm of the gradient is summed in several parts.
    for (recipe, name, source, counts) in [
        (BERT, "tiny-text", "data.source=synthetic", &[2, 5][..]),
        (BERT, "tiny-text", &text, &[1, 2, 3, 4, 5]),
        (ELECTRA, "tiny-electra", &text, &[1, 2, 3, 4, 5]),
    ] {
        let options =
            |run: &Path, ranks: usize| run_of(recipe, name, run, &[source, &format!("train.accumulation={ranks}")]);
        for &ranks in counts {
            let [one, all] =
                ["one", "all"].map(|part| folder.path().join(format!("{name}-{ranks}-{part}-{}", source.len())));
            let alone = train(&options(&one, ranks)).unwrap();
            let together = trained(ranks, |_| options(&all, ranks));
            assert_same_tensors(&last(&one), &last(&all));
            assert_eq!(last(&one).state, last(&all).state);
            assert_eq!(losses(&one), losses(&all));
            assert_eq!((alone.metrics, alone.best), (together.metrics, together.best), "{name}, {ranks}");
            assert_eq!((alone.samples, alone.steps), (together.samples, together.steps));
        }
    }
}

#[test]
fn ranks_of_several_micro_batches_are_close_and_repeat() {
    let folder = TempDir::new().unwrap();
    let source = "data.source=synthetic";
    let run = |name: &str| folder.path().join(name);
    let options = |path: &Path| run_of(BERT, "tiny-text", path, &[source]);
    train(&options(&run("one"))).unwrap();
    trained(2, |_| options(&run("two")));
    assert_eq!(losses(&run("one")).len(), 4);
    for (a, b) in losses(&run("one")).iter().zip(losses(&run("two"))) {
        assert!((a - b).abs() < 1e-5 * a.abs(), "{a} and {b}");
    }
    let variants: [(&str, BucketOptions, usize); 4] = [
        ("again", BucketOptions::default(), 1),
        ("small", BucketOptions { first_bytes: 100, bytes: 3000, overlap: true }, 1),
        ("apart", BucketOptions { first_bytes: 5000, bytes: 50_000, overlap: false }, 1),
        ("threads", BucketOptions::default(), 2),
    ];
    for (name, buckets, threads) in variants {
        let of = |_| {
            let mut options = options(&run(name));
            options.compute.compile.buckets = buckets;
            options.compute.device.threads = threads;
            options
        };
        trained(2, of);
        assert_same_tensors(&last(&run("two")), &last(&run(name)));
        assert_eq!(losses(&run("two")), losses(&run(name)), "{name}");
    }
}

/// Every 50 steps, the means of all ranks: of rank 0 those of its own steps.
#[test]
fn times_of_all_ranks_are_logged() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run");
    let shorter = ["train.steps=101", "train.accumulation=2", "eval.every_steps=101", "checkpoint.every_steps=101"];
    trained(2, |_| run_of(BERT, "tiny-text", &path, &[&["data.source=synthetic"][..], &shorter].concat()));
    let events = read_events(&path.join("events.jsonl")).unwrap();
    let steps: Vec<&StepInfo> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Step(info) => Some(info),
            _ => None,
        })
        .collect();
    let lines: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Ranks(info) => Some((event.header.step, info)),
            _ => None,
        })
        .collect();
    assert_eq!(
        lines.iter().map(|(step, info)| (*step, info.steps)).collect::<Vec<_>>(),
        [(Some(50), 50), (Some(100), 50)]
    );
    for (half, (_, info)) in lines.into_iter().enumerate() {
        let own = &steps[50 * half..][..50];
        let mean = |of: fn(&StepInfo) -> f64| own.iter().map(|step| of(step)).sum::<f64>() / 50.0;
        assert_eq!(info.ranks.len(), 2);
        for (logged, expected) in [
            (info.ranks[0].data_s, mean(|step| step.data_s)),
            (info.ranks[0].compute_s, mean(|step| step.compute_s)),
            (info.ranks[0].comm_s, mean(|step| step.comm_s)),
        ] {
            assert!((logged - expected).abs() <= 1e-9, "{logged} and {expected}");
        }
        assert!(info.ranks[1].compute_s > 0.0);
    }
}

#[test]
fn gradients_of_16_bits_on_the_wire_are_rounded_alike() {
    let folder = TempDir::new().unwrap();
    let options = |path: &Path| run_of(BERT, "tiny-text", path, &["data.source=synthetic"]);
    let run = |name: &str| folder.path().join(name);
    train(&options(&run("one"))).unwrap();
    for (wire, name, tolerance) in [(Wire::Bf16, "bf16", 1e-3), (Wire::F16, "f16", 1e-4)] {
        for part in ["first", "second"] {
            let path = run(&format!("{name}-{part}"));
            for report in train_by_wire(wire, 4, 8, |_| options(&path)) {
                report.unwrap();
            }
        }
        let [first, second] = ["first", "second"].map(|part| run(&format!("{name}-{part}")));
        assert_same_tensors(&last(&first), &last(&second));
        let (whole, rounded) = (losses(&run("one")), losses(&first));
        assert_eq!(whole[0], rounded[0], "the loss itself is not rounded");
        assert_ne!(whole[3], rounded[3], "gradients are");
        for (a, b) in whole.iter().zip(rounded) {
            assert!((a - b).abs() < tolerance * a.abs(), "{name}: {a} and {b}");
        }
    }
}

#[test]
fn norms_average_their_statistics_and_weights_are_the_same() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    for ranks in 1..=5 {
        let accumulation = format!("train.accumulation={ranks}");
        let overrides = ["train.batch_size=4", &accumulation, "train.epochs=", "train.steps=3", "eval.every_epochs="];
        let path = |name: &str| run(&format!("{name}-{ranks}"));
        train(&new_run(&path("one"), &overrides)).unwrap();
        trained(ranks, |_| new_run(&path("all"), &overrides));
        assert_same_but_statistics(&last(&path("one")), &last(&path("all")));
        assert_eq!(losses(&path("one")), losses(&path("all")));
        if ranks == 3 {
            trained(ranks, |_| new_run(&path("again"), &overrides));
            assert_same_tensors(&last(&path("all")), &last(&path("again")));
        }
    }
}

#[test]
fn scaled_losses_agree_on_overflows() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let overrides = [
        "train.batch_size=4",
        "train.accumulation=2",
        "train.steps=6",
        "precision.compute=fp16",
        "precision.loss_scale=16777216",
        "precision.loss_scale_growth_steps=1000",
    ];
    train(&new_run(&run("one"), &overrides)).unwrap();
    trained(2, |_| new_run(&run("all"), &overrides));
    let scales = |run: &Path| -> Vec<Option<f64>> {
        let steps = read_events(&run.join("events.jsonl")).unwrap().into_iter();
        steps
            .filter_map(|event| if let EventBody::Step(info) = event.body { Some(info.loss_scale) } else { None })
            .collect()
    };
    assert!(scales(&run("one"))[5] < scales(&run("one"))[0], "there was an overflow");
    assert_eq!(scales(&run("one")), scales(&run("all")));
    assert_same_but_statistics(&last(&run("one")), &last(&run("all")));
}

/// Two ranks that take norms and weighted means over both, beside one rank with batches of twice the size.
#[test]
fn norms_and_means_over_all_ranks_make_one_batch_of_theirs() {
    let folder = TempDir::new().unwrap();
    let images = ["train.epochs=1", "train.mixup_alpha=0"];
    let boxes = ["data.train_samples=12", "model.drop_path=0", "train.norms_over=all"];
    for (recipe, name, batch, overrides, key) in [
        (crate::common::RECIPE, "tiny", 4, &images[..], "train.norms_over"),
        (DETECTOR, "tiny-detector", 3, &boxes[..], "train.means_over"),
    ] {
        let run = |part: &str| folder.path().join(format!("{name}-{part}"));
        let options = |path: &Path, batch: usize, accumulation: usize, over: &str| {
            let batch = format!("train.batch_size={batch}");
            let accumulation = format!("train.accumulation={accumulation}");
            let over = format!("{key}={over}");
            run_of(recipe, name, path, &[overrides, &[&batch, &accumulation, &over]].concat())
        };
        train(&options(&run("one"), 2 * batch, 1, "rank")).unwrap();
        let whole = losses(&run("one"));
        let distance = |part: &str, over: &str| {
            trained(2, |_| options(&run(part), batch, 2, over));
            let losses = losses(&run(part));
            assert_eq!(losses.len(), whole.len());
            losses.iter().zip(&whole).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
        };
        let (shared, own) = (distance("all", "all"), distance("rank", "rank"));
        assert!(shared < 2e-4 && own > 5.0 * shared, "{name}: {shared} over all ranks, {own} over one");
        distance("again", "all");
        assert_same_tensors(&last(&run("all")), &last(&run("again")));
    }
}

/// Norms over all ranks in steps of several micro-batches: their sums belong to every one of them.
#[test]
fn norms_over_all_ranks_repeat_with_other_messages() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let overrides = ["train.batch_size=2", "train.accumulation=4", "train.steps=3", "train.norms_over=all"];
    for (name, buckets) in [
        ("usual", BucketOptions::default()),
        ("small", BucketOptions { first_bytes: 100, bytes: 3000, overlap: true }),
        ("apart", BucketOptions { first_bytes: 5000, bytes: 50_000, overlap: false }),
    ] {
        let of = |_| {
            let mut options = new_run(&run(name), &overrides);
            options.compute.compile.buckets = buckets;
            options
        };
        trained(2, of);
        assert_same_tensors(&last(&run("usual")), &last(&run(name)));
        assert_eq!(losses(&run("usual")), losses(&run(name)), "{name}");
    }
}

/// A detector on one rank and on several, of two steps and without an evaluation worth the name.
fn detectors_have_the_bits_of_one_rank(counts: impl Iterator<Item = usize>) {
    let folder = TempDir::new().unwrap();
    for ranks in counts {
        for (recipe, name) in [(MASKS, "tiny-masks"), (DETECTOR, "tiny-detector")] {
            let run = |part: &str| folder.path().join(format!("{name}-{ranks}-{part}"));
            let accumulation = format!("train.accumulation={ranks}");
            let overrides = ["train.steps=2", "train.batch_size=1", "data.eval_samples=1", &accumulation];
            let options = |path: &Path| run_of(recipe, name, path, &overrides);
            train(&options(&run("one"))).unwrap();
            trained(ranks, |_| options(&run("all")));
            assert_same_but_statistics(&last(&run("one")), &last(&run("all")));
            assert_eq!(losses(&run("one")), losses(&run("all")), "{name}, {ranks}");
        }
    }
}

#[test]
fn detectors_of_three_ranks_have_the_bits_of_one() {
    detectors_have_the_bits_of_one_rank([3].into_iter());
}

/// `cargo test --profile checked -p bessemer-train --test training -- --ignored ranks`
#[test]
#[ignore = "takes minutes: the numbers of ranks beside those that the other tests have"]
fn detectors_of_any_number_of_ranks_have_the_bits_of_one() {
    detectors_have_the_bits_of_one_rank([1, 4, 5].into_iter());
}

#[test]
fn detectors_train_and_are_scored_over_ranks() {
    let folder = TempDir::new().unwrap();
    for (recipe, name, model, kind) in [
        (MASKS, "tiny-masks", "mask-rcnn-tiny", "segm.json"),
        (DETECTOR, "tiny-detector", "efficientdet-tiny", "bbox.json"),
    ] {
        let run = |part: &str| folder.path().join(format!("{name}-{part}"));
        let options = |path: &Path| run_of(recipe, name, path, &[]);
        train(&options(&run("one"))).unwrap();
        let report = trained(2, |_| options(&run("two")));
        assert_same_but_statistics(&last(&run("one")), &last(&run("two")));
        assert_eq!(losses(&run("one")), losses(&run("two")));
        // The same checkpoint, judged by one rank.
        let out = run("alone");
        let mut alone = EvaluateOptions {
            batch_size: if model == "mask-rcnn-tiny" { 1 } else { 2 },
            out: Some(out.clone()),
            ..EvaluateOptions::default()
        };
        alone.compute.device.threads = 1;
        let judged = evaluate(model, &last_folder(&run("two")), Path::new("shapes"), &alone).unwrap();
        assert_eq!(judged.metrics, report.metrics, "{name}");
        for file in [kind, "compared-000.jpg", "compared-004.jpg"] {
            let [a, b] =
                [out.join(file), run("two").join("predictions").join(file)].map(|path| std::fs::read(path).unwrap());
            assert!(a == b, "{name}: {file} differs");
        }
    }
}

#[test]
fn runs_resume_on_other_numbers_of_ranks() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let options = |path: &Path| run_of(BERT, "tiny-text", path, &["data.source=synthetic"]);
    trained(4, |_| options(&run("whole")));
    for (first, second) in [(4, 4), (4, 1), (1, 4)] {
        let path = run(&format!("{first}-{second}"));
        let begun = |_| TrainOptions { run_steps: Some(3), ..options(&path) };
        let errors = match first {
            1 => vec![train(&begun(0))],
            ranks => train_ranks(ranks, 5, begun),
        };
        for error in errors {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Interrupted);
        }
        let resumed = |_| TrainOptions { folder: RunFolder::Resume(path.clone()), ..options(&path) };
        match second {
            1 => drop(train(&resumed(0)).unwrap()),
            ranks => drop(trained(ranks, resumed)),
        }
        assert_eq!(losses(&run("whole")), losses(&path), "{first} {second}");
        assert_same_tensors(&last(&run("whole")), &last(&path));
        assert_eq!(last(&run("whole")).state, last(&path).state);
        // Nothing is left to do, on any rank.
        assert!(train_ranks(2, 2, resumed).into_iter().all(|report| report.unwrap().was_finished));
    }
}

#[test]
fn a_rank_that_fails_in_an_evaluation_takes_nothing_from_the_step_before() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let shapes = run("shapes");
    ShapesFolder { seed: 1, train: 24, val: 12, size: 16, format: FileFormat::Png }.write(&shapes).unwrap();
    // The last batch of the evaluation is one of the second rank.
    let last_of = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    std::fs::write(last_of(&last_of(&shapes.join("val"))), "no picture").unwrap();
    let source = format!("data.source={}", shapes.display());
    let all = [&source, "data.train_samples=", "data.eval_samples=", "train.batch_size=2", "train.accumulation=4"];
    let rest = ["train.epochs=", "train.steps=3", "eval.every_epochs=", "eval.batch_size=2"];
    let saved = |name: &str, every: &[&str]| {
        let overrides = [&all[..], &rest[..], every].concat();
        for end in train_ranks(2, 3, |_| new_run(&run(name), &overrides)) {
            let error = end.unwrap_err().to_string();
            assert!(error.contains("val/"), "{error}");
        }
        load_checkpoint(&run(name).join("checkpoints/step-000002")).unwrap()
    };
    let whole = saved("whole", &["checkpoint.every_steps=2", "eval.every_steps=3"]);
    let failed = saved("failed", &["checkpoint.every_steps=3", "eval.every_steps=2"]);
    assert_same_tensors(&whole, &failed);
}

#[test]
fn all_ranks_stop_behind_the_step_of_the_one_that_is_asked() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let options = |path: &Path| run_of(BERT, "tiny-text", path, &["data.source=synthetic"]);
    let ends = train_ranks(2, 9, |rank| {
        let options = options(&run("stopped"));
        if rank == 1 {
            options.stop.raise();
        }
        options
    });
    for end in ends {
        let error = end.unwrap_err();
        assert!(matches!(error, TrainError::Interrupted { step: 1, .. }), "{error}");
    }
    trained(2, |_| TrainOptions { folder: RunFolder::Resume(run("stopped")), ..options(&run("stopped")) });
    trained(2, |_| options(&run("whole")));
    assert_same_tensors(&last(&run("whole")), &last(&run("stopped")));
}

#[test]
fn ranks_that_differ_or_fail_end_the_job() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let messages = |ends: Vec<End>| ends.into_iter().map(|end| end.unwrap_err().to_string()).collect::<Vec<_>>();
    let seeds = ["train.seed=3", "train.seed=4"];
    let options = |name: &str, overrides: &[&str]| {
        run_of(BERT, "tiny-text", &run(name), &[&["data.source=synthetic"], overrides].concat())
    };
    let told = messages(train_ranks(2, 1, |rank| options("seeds", &[seeds[rank]])));
    assert!(told.iter().any(|text| text.contains("its recipe is")), "{told:?}");
    let told = messages(train_ranks(3, 1, |_| options("division", &[])));
    let expected = "train.accumulation is 4; the 3 ranks share the micro-batches of a step, so that it must be a multiple of 3: \
                    --set train.accumulation=6, or --split-batch to cut micro-batches, or --weak for a larger step";
    assert!(told.iter().all(|text| text.ends_with(expected)), "{told:?}");
    // Rank 0 finds its folder in use; the other one is told.
    std::fs::create_dir_all(run("used/x")).unwrap();
    let told = messages(train_ranks(2, 1, |_| options("used", &[])));
    assert!(told[0].contains("used") && told[1].contains("rank 0") && told[1].contains("used"), "{told:?}");
    assert!(!run("seeds").exists() && !run("division").exists());
}

/// Ranks that give the same job and are not the same: the data and the compiled step are compared as well.
#[test]
fn ranks_with_other_data_or_another_step_are_told() {
    let folder = TempDir::new().unwrap();
    let data = text(folder.path());
    let source = format!("data.source={}", data.display());
    let (text, synthetic) = (&*source, "data.source=synthetic");
    for (what, overrides) in [
        ("the identity of the data", [[synthetic, "train.clip_norm=1"], [text, "train.clip_norm=1"]]),
        ("the hash of the compiled step", [[synthetic, "train.clip_norm=1"], [synthetic, "train.clip_norm="]]),
    ] {
        let run = folder.path().join("run");
        let ends = in_group(
            2,
            Wire::F32,
            1,
            |_| "one job".to_owned(),
            |rank, group| train_in(&run_of(BERT, "tiny-text", &run, &overrides[rank]), group),
        );
        for end in ends {
            let error = end.unwrap_err();
            assert!(matches!(error, TrainError::RanksDiffer { what: told, rank: 1, .. } if told == what), "{error}");
        }
        assert!(!run.exists());
    }
}

/// State as ranks hold it, in one tensor each of two names.
struct Held {
    layout: StateLayout,
    bytes: Mutex<[Vec<u8>; 2]>,
}

impl Held {
    fn new(shared: [f32; 2], own: [f32; 2]) -> Self {
        let tensor = |name: &str| StateTensor::new(name, &TensorType::f32([2]), &Rules::DEFAULT);
        let bytes = [shared, own].map(|values| values.iter().flat_map(|value| value.to_ne_bytes()).collect());
        Self { layout: StateLayout::new(["shared", "own"].map(tensor), 4), bytes: Mutex::new(bytes) }
    }
}

impl StateStore for Held {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn read(&self, name: &str, into: &mut [u8]) -> Result<(), RunError> {
        into.copy_from_slice(&self.bytes.lock().unwrap()[self.layout.number(name)?]);
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        self.bytes.lock().unwrap()[self.layout.number(name)?].copy_from_slice(bytes);
        Ok(())
    }

    fn snapshot(self: Arc<Self>, _: &[usize]) -> Result<Box<dyn StateSnapshot>, RunError> {
        unreachable!("nobody remembers this state")
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn state_that_differs_between_ranks_is_found_and_shared() {
    let ends = in_group(
        3,
        Wire::F32,
        4,
        |_| "one job".to_owned(),
        |rank, group| {
            let held = Held::new([1.0, if rank == 2 { -2.0 } else { 2.0 }], [rank as f32, 0.0]);
            let verify =
                |step| group.verify_state(step, &held, |name| name == "shared").err().map(|error| error.to_string());
            let (early, due) = (verify(3), verify(4));
            group.share_state(&held).unwrap();
            let found = (early, due, verify(8), held.bytes.lock().unwrap().clone());
            group.leave(None).unwrap();
            found
        },
    );
    for (early, due, shared, bytes) in ends {
        assert_eq!((early, shared), (None, None));
        let due = due.expect("step 4 is due");
        assert!(due.starts_with("after step 4 the tensor `shared` is not the same on all ranks"), "{due}");
        assert_eq!(bytes, Held::new([1.0, 2.0], [0.0, 0.0]).bytes.into_inner().unwrap());
    }
}

#[test]
fn a_rank_that_ends_without_leaving_is_told_to_the_others() {
    let job = |_: usize| "one job".to_owned();
    let ends = in_group(3, Wire::F32, 4, job, |rank, group| {
        // All ranks have started before rank 1 ends: in one that has not, starting fails with the message, and there is no group.
        let met = group.any(false);
        if rank == 1 { None } else { met.and_then(|_| group.any(false)).err() }
    });
    assert!(ends[1].is_none());
    for end in [&ends[0], &ends[2]] {
        let error = end.as_ref().expect("rank 1 never comes").to_string();
        assert!(error.contains("rank 1") && error.contains("it ended without leaving the job"), "{error}");
    }
}

#[test]
fn what_a_rank_refuses_the_others_refuse() {
    let job = |_: usize| "one job".to_owned();
    let ends = in_group(2, Wire::F32, 4, job, |rank, group| {
        let met = group.any(false);
        if rank == 1 {
            group.refuse("3 samples cannot be cut");
            return None;
        }
        met.and_then(|_| group.any(false)).err()
    });
    let error = ends[0].as_ref().expect("rank 1 never comes");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("3 samples cannot be cut"), "{error}");
}

#[test]
fn what_is_not_finite_is_found_on_the_rank_that_has_it() {
    let folder = TempDir::new().unwrap();
    let run = |name: &str| folder.path().join(name);
    let overrides = [
        "schedule.kind=constant",
        "schedule.warmup_epochs=0",
        "schedule.base_lr=1000",
        "train.clip_norm=",
        "train.epochs=60",
        "eval.every_epochs=",
        "train.batch_size=4",
        "train.accumulation=2",
        "optimizer.weight_decay=1",
        "optimizer.decay_exclude=none",
    ];
    let one = train(&new_run(&run("one"), &overrides)).unwrap_err().to_string();
    let all = train_ranks(2, 1, |_| new_run(&run("all"), &overrides));
    for error in all {
        let error = error.unwrap_err();
        assert!(matches!(error, TrainError::NonFinite(_)), "{error}");
        assert_eq!(error.to_string(), one);
    }
}
