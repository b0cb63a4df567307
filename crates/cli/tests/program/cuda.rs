//! Models on a GPU by the program itself, over the mock of one: trained, saved, resumed on the other device, evaluated and used.

use crate::common::{bessemer, ran};
use crate::machine::{FILES, Machine, TRAIN, copy_folder, difference, json, tensors};
use crate::mock::skip;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// Runs of three steps on each device, and runs that change the device behind the second one, come to the same weights.
#[test]
fn runs_go_on_on_the_other_device() {
    let Some(machine) = Machine::new("runs_go_on_on_the_other_device") else { return };
    for device in ["cuda", "cpu"] {
        machine.run_on(device, &format!("{TRAIN} --steps 3 --out {device}")).ok();
        assert_eq!(machine.devices(device), [device]);
    }
    for (first, then) in [("cuda", "cpu"), ("cpu", "cuda")] {
        let run = format!("{first}-then-{then}");
        copy_folder(&machine.path(first), &machine.path(&run));
        fs::remove_dir_all(machine.path(&run).join("checkpoints/step-000003")).unwrap();
        machine.run_on(then, &format!("train --resume {run} --quiet")).ok();
        assert_eq!(machine.devices(&run), [first, then]);
        for file in FILES {
            let step_2 = |run: &str| machine.checkpoint(run, 2, file);
            assert!(step_2(first) == step_2(&run), "what was there is left alone");
            let difference = difference(&machine.checkpoint(first, 3, file), &machine.checkpoint(&run, 3, file));
            assert!(difference < 1e-4, "{run}: {file} differs by {difference:e}");
        }
    }
    let [gpu, cpu] = ["cuda", "cpu"].map(|run| machine.losses(run));
    assert_eq!((gpu.len(), cpu.len()), (3, 3));
    assert!(gpu.iter().zip(&cpu).all(|(x, y)| (x - y).abs() <= 1e-4 * x.abs()), "{gpu:?} {cpu:?}");
    // A run that begins with what another one came to saves that first: what a device has read it writes unchanged.
    for (from, on) in [("cuda", "cpu"), ("cpu", "cuda")] {
        let run = format!("{on}-from-{from}");
        machine.run_on(on, &format!("{TRAIN} --steps 1 --init-from {from} --checkpoint 3 --out {run}")).ok();
        for file in FILES {
            let [written, read] =
                [(from, 3), (&run, 0)].map(|(run, step)| tensors(&machine.checkpoint(run, step, file)));
            assert!(written == read && !written.is_empty(), "{run}: {file}");
        }
    }
}

/// A step is begun before the results of the one before it are read: when a device fails, it may have been in either.
#[test]
fn a_step_is_begun_before_the_last_one_is_over() {
    let Some(machine) = Machine::new("a_step_is_begun_before_the_last_one_is_over") else { return };
    let train = format!("{TRAIN} --steps 30 --set data.train_samples=60 --set checkpoint.every_steps=100 --out run");
    let on_gpu = format!("--device cuda --tuning off --gpu-libraries {}", machine.mocks.display());
    let ran = ran(machine.command(&format!("{train} {on_gpu}")).env("MOCK_LOST_AT", "3000"));
    let (_, steps) = ran.err.split_once(", in one of steps ").unwrap_or_else(|| panic!("{}", ran.err));
    let (first, rest) = steps.split_once(" to ").unwrap();
    let (last, _) = rest.split_once(' ').unwrap();
    let [first, last]: [usize; 2] = [first, last].map(|number| number.parse().unwrap());
    assert!(first > 2 && last == first + 1, "{}", ran.err);
    assert_eq!(machine.losses("run").len(), first, "steps that were over are logged");
}

/// Of a step that diverges the same is said on both devices, though the next one was begun before that was known.
#[test]
fn a_step_that_is_not_finite_ends_the_run_on_both_devices() {
    let Some(machine) = Machine::new("a_step_that_is_not_finite_ends_the_run_on_both_devices") else { return };
    let train = format!(
        "{TRAIN} --steps 12 --set data.train_samples=80 --set checkpoint.every_steps=100 --set schedule.base_lr=1000 \
         --set optimizer.weight_decay=1"
    );
    let said = ["cuda", "cpu"].map(|device| {
        let told = ["error: step ", ": the loss is ", "; first in ", "nothing was saved since the last checkpoint"];
        let ran = machine.run_on(device, &format!("{train} --out {device}")).fails(1, &told);
        let (step, _) = ran.err.split_once(": the loss is ").unwrap();
        let (_, place) = ran.err.split_once(" at `").unwrap();
        let (place, _) = place.split_once('`').unwrap();
        let losses = machine.losses(device);
        assert_eq!(step, format!("error: step {}", losses.len() + 1));
        assert!(losses.len() > 2);
        (step.to_owned(), place.to_owned())
    });
    assert_eq!(said[0], said[1]);
}

const DIVERGING: &str = r#"
name = "tiny-text"
model = { name = "bert-tiny", vocab_multiple = 8 }
data = { source = "synthetic" }
text = { sequence_length = 8, max_predictions = 2 }
train = { batch_size = 2, accumulation = 2, steps = 30, seed = 3 }
optimizer = { kind = "lamb", weight_decay = 0.01, decay_exclude = "layer_norm_and_bias" }
schedule = { kind = "constant", base_lr = 900.0 }
eval = { batch_size = 4, every_steps = 300 }
"#;

/// The step that diverged is gone through once more with its own batches and its own dropout, whether the next one was begun or, for a
/// checkpoint between them, not.
#[test]
fn a_step_is_found_again_behind_one_that_was_begun() {
    let Some(machine) = Machine::new("a_step_is_found_again_behind_one_that_was_begun") else { return };
    fs::write(machine.path("bert.toml"), DIVERGING).unwrap();
    let said = [1, 100].map(|every| {
        let train = format!("train --recipe bert.toml --quiet --out run-{every} --set checkpoint.every_steps={every}");
        machine.run_on("cuda", &train).fails(1, &["error: step 5: ", "whose inputs lie in"]).err
    });
    assert_eq!(said[0], said[1]);
}

/// What is drawn for a step does not depend on whether the one before it was left out, which is not known when its batch is fed.
#[test]
fn steps_that_are_left_out_change_no_batch() {
    let Some(machine) = Machine::new("steps_that_are_left_out_change_no_batch") else { return };
    let mixed = "--precision fp16 --set precision.loss_scale=16777216 --set precision.loss_scale_growth_steps=100 \
                 --set train.mixup_alpha=1.0 --set train.batch_size=4";
    let [gpu, cpu] = ["cuda", "cpu"].map(|device| {
        machine.run_on(device, &format!("{TRAIN} --steps 4 {mixed} --out {device}")).ok();
        let events = fs::read_to_string(machine.path(device).join("events.jsonl")).unwrap();
        assert!(events.contains("the gradient overflowed at loss scale 16777216"), "{events}");
        machine.losses(device)
    });
    assert_eq!((gpu.len(), cpu.len()), (4, 4));
    assert!(gpu.iter().zip(&cpu).all(|(x, y)| (x - y).abs() <= 3e-3 * x.abs()), "{gpu:?} {cpu:?}");
}

#[test]
fn both_devices_recognise_the_same() {
    let Some(machine) = Machine::new("both_devices_recognise_the_same") else { return };
    machine.run_on("cpu", &format!("{TRAIN} --steps 2 --out run")).ok();
    machine.run("data shapes --out shapes --train 10 --val 10 --size 32 --png").ok();
    let on = |device: &str| {
        let eval =
            json(machine.run_on(device, "eval resnet20-cifar --weights run --data shapes --batch-size 4 --json"));
        let infer = "infer resnet20-cifar --weights run --top 4 --json shapes/val";
        (eval, json(machine.run_on(device, infer)))
    };
    let [(eval, infer), (expected_eval, expected_infer)] = ["cuda", "cpu"].map(on);
    let close = |x: &Value, y: &Value, what: &str| {
        let (x, y) = (x.as_f64().unwrap(), y.as_f64().unwrap());
        assert!((x - y).abs() <= 1e-4, "{what}: {x} and {y}");
    };
    assert_eq!(eval["total"], 4);
    for name in ["loss", "top1"] {
        close(&eval[name], &expected_eval[name], name);
    }
    let (pictures, expected) = (infer.as_array().unwrap(), expected_infer.as_array().unwrap());
    assert_eq!((pictures.len(), expected.len()), (10, 10));
    for (picture, expected) in pictures.iter().zip(expected) {
        assert_eq!(picture["path"], expected["path"]);
        let probabilities = |picture: &Value| {
            let classes = picture["classes"].as_array().unwrap().iter();
            classes.map(|class| (class["class"].to_string(), class["probability"].clone())).collect::<BTreeMap<_, _>>()
        };
        let (classes, expected) = (probabilities(picture), probabilities(expected));
        assert_eq!(classes.len(), 4);
        classes.iter().for_each(|(class, probability)| close(probability, &expected[class], class));
    }
}

#[test]
fn steps_are_measured() {
    let Some(machine) = Machine::new("steps_are_measured") else { return };
    let bench = "bench infer resnet20-cifar --batch-size 1 --warmup 1 --steps 1 --repeat 1 --quiet --json";
    let result = json(machine.run_on("cuda", bench));
    assert_eq!((&result["device"], &result["device_name"]), (&"cuda".into(), &"NVIDIA H200 (mock)".into()));
    assert!(result["throughput"].as_f64().unwrap() > 0.0);
}

/// Kernels are timed one by one, and that beside the step as it is replayed.
#[test]
fn kernels_are_measured_beside_the_replayed_step() {
    let Some(machine) = Machine::new("kernels_are_measured_beside_the_replayed_step") else { return };
    let bench = "bench infer resnet20-cifar --batch-size 1 --warmup 1 --steps 2 --repeat 1 --quiet --profile";
    let on = |device: &str, options: &str| machine.run_on(device, &format!("{bench} {options}")).ok().out;
    let text = on("cuda", "");
    let line = text.lines().find(|line| line.contains("kernels one by one take")).unwrap_or_else(|| panic!("{text}"));
    let numbers: Vec<f64> = line.split([' ', ':']).filter_map(|word| word.parse().ok()).collect();
    let [kernels, step, difference] = numbers[..] else { panic!("{line}") };
    let gaps = if line.contains("are gaps between kernels") { difference } else { -difference };
    assert!(kernels > 0.0 && (step - kernels - gaps).abs() < 0.002, "{line}");
    for (device, options) in [("cuda", "--eager"), ("cpu", "")] {
        assert!(!on(device, options).contains("one by one"), "{device} {options}");
    }
}

/// What a batch needs is known before anything runs: a GPU of 2.2 GB takes the batch that is predicted for one, with 1.5 GB left for
/// libraries.
#[test]
fn a_batch_that_does_not_fit_is_said_with_the_largest_that_does() {
    let Some(machine) = Machine::new("a_batch_that_does_not_fit_is_said_with_the_largest_that_does") else { return };
    machine.run_on("cuda", &format!("{TRAIN} --steps 1 --out run")).ok();
    let on_small = |words: &str| {
        let on_gpu = format!("--device cuda --tuning off --gpu-libraries {}", machine.mocks.display());
        let begun = Instant::now();
        let ran = ran(machine.command(&format!("{words} {on_gpu}")).env("MOCK_MEMORY", "2200000000"));
        println!("{words}: {:.1} s", begun.elapsed().as_secs_f64());
        ran
    };
    let sheet = machine.run("explain resnet20-cifar --device cuda --print-sheet").ok().out;
    let sheet = sheet.replace("memory_gbytes = { value = 141.0", "memory_gbytes = { value = 2.2");
    fs::write(machine.path("small.toml"), sheet).unwrap();
    let explained = json(machine.run("explain resnet20-cifar --device cuda --sheet small.toml --json"));
    let largest = explained["largest_batch"].as_u64().unwrap() as usize;
    assert!((8..10_000).contains(&largest), "{largest}");

    let bench = "bench train resnet20-cifar --batch-size 10000 --warmup 0 --steps 1 --repeat 1 --json --quiet";
    let result: Value = serde_json::from_str(&on_small(bench).fails(1, &["nothing was measured"]).out).unwrap();
    let error = result["options"]["error"].as_str().unwrap();
    assert!(error.starts_with("out of memory: no memory for "), "{error}");
    let named = |said: &str, batch: usize, setting: &str| -> usize {
        let end = said.trim_end().strip_suffix(&format!(" does ({setting})")).unwrap_or_else(|| panic!("{said}"));
        let (_, fits) = end.split_once(&format!("; a batch of {batch} does not fit, one of ")).unwrap();
        fits.parse().unwrap()
    };
    let fits = named(error, 10_000, "--batch-size");
    assert!(fits <= largest && largest as f64 <= 1.02 * fits as f64, "{fits} of {largest}: {error}");
    for (words, batch, setting) in [
        (
            "eval resnet20-cifar --weights run --data shapes --batch-size 200000 --quiet".to_owned(),
            200_000,
            "--batch-size",
        ),
        (
            format!("{TRAIN} --steps 1 --set train.batch_size=20000 --set data.train_samples=20000 --out large"),
            20_000,
            "train.batch_size",
        ),
        (format!("{TRAIN} --steps 1 --set eval.batch_size=60000 --out evaluated"), 60_000, "eval.batch_size"),
    ] {
        let said = on_small(&words).fails(2, &["error: no memory for "]).err;
        assert!((1..batch).contains(&named(&said, batch, setting)), "{said}");
    }
}

/// This program's runs of a comparison are on the GPU, in processes of their own, and are held against each other.
#[test]
fn forms_of_a_step_are_compared() {
    let Some(machine) = Machine::new("forms_of_a_step_are_compared") else { return };
    let compare = "compare bert-tiny --mode infer --frameworks bessemer+fused,bessemer+unfused --precision bf16 --warmup 0 \
                   --steps 1 --repeat 1 --patience 0 --batch-size 1 --sequence-length 8 --predictions 1 --quiet";
    machine.run(&format!("{compare} --device cuda --gpu-libraries {}", machine.mocks.display())).ok();
    let results = fs::read_to_string(machine.path("comparison/results.jsonl")).unwrap();
    let results: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(results.len(), 2);
    for result in results {
        assert_eq!((&result["device"], &result["device_name"]), (&"cuda".into(), &"NVIDIA H200 (mock)".into()));
        assert_eq!(result["comparison"]["work"]["verdict"], "same", "{result}");
        assert!(result["throughput"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn what_a_gpu_cannot_do_yet_is_said_before_anything_runs() {
    let Some(machine) = Machine::new("what_a_gpu_cannot_do_yet_is_said_before_anything_runs") else { return };
    machine
        .run_on("cuda:1", &format!("{TRAIN} --steps 1 --out run"))
        .fails(2, &["cuda:1", "no GPU number 1", "sees 1"]);
    machine.run_on("cuda", "quickstart --quiet").fails(2, &["quickstart runs on cpu alone"]);
    let tf32 = "train resnet20-cifar --data shapes --set precision.compute=tf32 --steps 1";
    machine.run_on("cpu", tf32).fails(2, &["precision.compute is tf32; allowed on cpu: fp32, bf16, fp16"]);
    assert!(fs::read_dir(machine.folder.path()).unwrap().next().is_none(), "nothing is written");
}

/// A damaged file is an error if it was named; in the cache an empty one replaces it, where it can.
#[test]
fn engines_that_cannot_be_read_are_told() {
    let Some(machine) = Machine::new("engines_that_cannot_be_read_are_told") else { return };
    let on_gpu = format!("--device cuda --gpu-libraries {}", machine.mocks.display());
    fs::write(machine.path("engines.json"), "{\"NVIDIA").unwrap();
    let train = format!("{TRAIN} --steps 1 --out run {on_gpu} --tuning engines.json");
    machine
        .run(&train)
        .fails(2, &["--tuning: engines.json holds no choices of engines and algorithms: EOF", "name another file"]);
    assert!(!machine.path("run").exists());
    let kept = machine.path("cache/bessemer/tuning/engines.json");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "{\"NVIDIA").unwrap();
    let mut doctor = machine.command(&format!("doctor {on_gpu}"));
    let told = ran(doctor.env("XDG_CACHE_HOME", machine.path("cache"))).err;
    let warning = format!("warning: {} holds no choices of engines and algorithms: EOF", kept.display());
    assert!(told.starts_with(&warning) && told.trim_end().ends_with("; an empty file replaces it"), "{told}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "{}\n");

    // A folder in its place cannot be replaced: the run does without measurements.
    fs::remove_file(&kept).unwrap();
    fs::create_dir(&kept).unwrap();
    let mut train = machine.command(&format!("{TRAIN} --steps 1 --out run {on_gpu}"));
    let told = ran(train.env("XDG_CACHE_HOME", machine.path("cache"))).ok().err;
    let warning = format!("warning: {} cannot be read, nor replaced: ", kept.display());
    assert!(told.contains(&warning) && told.contains("engines and algorithms are not measured"), "{told}");
}

/// The plan of a run says by which algorithms it is done, and a run that goes on by others says so.
#[test]
fn a_run_that_goes_on_by_other_algorithms_says_so() {
    let Some(machine) = Machine::new("a_run_that_goes_on_by_other_algorithms_says_so") else { return };
    let on_gpu = format!("--device cuda --gpu-libraries {} --tuning kept.json", machine.mocks.display());
    machine.run(&format!("{TRAIN} --steps 3 --out run {on_gpu}")).ok();
    fs::remove_dir_all(machine.path("run/checkpoints/step-000003")).unwrap();
    copy_folder(&machine.path("run"), &machine.path("same"));
    machine.run(&format!("train --resume same --quiet {on_gpu}")).ok();
    // Engines 7 and 8 of the mock are its first and its second configuration.
    let kept = fs::read_to_string(machine.path("kept.json")).unwrap();
    let mut all: Value = serde_json::from_str(&kept).unwrap();
    let convolutions = all["NVIDIA H200 (mock), driver 13000, cuDNN 91900"].as_object_mut().unwrap();
    let (_, changed) = convolutions.iter_mut().find(|(name, _)| name.starts_with("forward, ")).unwrap();
    let (before, now) = if changed["engine"] == 7 { (7, 8) } else { (8, 7) };
    changed["engine"] = now.into();
    changed["configuration"] = (now - 7).into();
    fs::write(machine.path("kept.json"), all.to_string()).unwrap();
    machine.run(&format!("train --resume run --quiet {on_gpu}")).ok();
    let events = |run: &str| fs::read_to_string(machine.path(run).join("events.jsonl")).unwrap();
    let warning = "algorithms are others than before, so that results differ in their last bits: ";
    assert!(!events("same").contains(warning));
    let engine = |number: u64| format!("engine {number} in configuration {} of cuDNN", number - 7);
    let what = format!("{warning}{} until now, {} from now on, for forward, ", engine(before), engine(now));
    let told = events("run");
    let found = told.lines().find(|line| line.contains(warning)).expect(&told);
    assert!(found.contains("\"1 of ") && found.contains(&what), "{found}");
    let plan = told.lines().find(|line| line.contains("\"algorithms\"")).expect(&told);
    assert!(plan.contains("of cuBLASLt") && plan.contains("of cuDNN"), "{plan}");
}

/// Of steps that were recorded it is known that one of them failed, of those that are launched one by one at which operation.
#[test]
fn eager_steps_say_where_a_gpu_fails() {
    let Some(machine) = Machine::new("eager_steps_say_where_a_gpu_fails") else { return };
    let train = |options: &str| {
        let on_gpu = format!("--device cuda --tuning off --gpu-libraries {}", machine.mocks.display());
        ran(machine.command(&format!("{TRAIN} --steps 2 --out run {on_gpu} {options}")).env("MOCK_LOST_AT", "40"))
    };
    train("").fails(1, &["CUDA_ERROR_ILLEGAL_ADDRESS", ", in step 0 (`--eager --check` names the call)", "is lost"]);
    fs::remove_dir_all(machine.path("run")).unwrap();
    train("--eager --check").fails(1, &["CUDA_ERROR_ILLEGAL_ADDRESS", ", in step 0 at ", "is lost"]);
    let on_cpu = |options: &str| machine.run(&format!("{TRAIN} --steps 1 --out cpu {options}"));
    on_cpu("--eager").fails(2, &["--eager is for --device cuda"]);
    on_cpu("--check --device cuda").fails(2, &["--check is for --device cuda with --eager"]);
    let other = on_cpu("--eager --check=all --device cuda");
    assert!(other.code == 2 && other.err.contains("[possible values: errors, memory]"), "{}", other.err);
    assert!(!machine.path("cpu").exists());
    let bench = "bench infer resnet20-cifar --batch-size 1 --warmup 0 --steps 1 --repeat 1 --quiet --json";
    let result = json(machine.run_on("cuda", &format!("{bench} --eager --check=memory")));
    assert!(result["throughput"].as_f64().unwrap() > 0.0);
}

/// The mock of cuBLASLt rounds operands in TF32, so that the losses are others, within 1e-2.
#[test]
fn tf32_is_a_precision_of_gpus() {
    let Some(machine) = Machine::new("tf32_is_a_precision_of_gpus") else { return };
    for precision in ["fp32", "tf32"] {
        machine.run_on("cuda", &format!("{TRAIN} --steps 2 --precision {precision} --out {precision}")).ok();
    }
    let [exact, rounded] = ["fp32", "tf32"].map(|run| machine.losses(run));
    assert_eq!((exact.len(), rounded.len()), (2, 2));
    for (x, y) in exact.iter().zip(&rounded) {
        assert!(x != y && (x - y).abs() < 1e-2 * x, "{y} for {x}");
    }
    let evaluate = "eval resnet20-cifar --weights tf32 --data shapes --batch-size 4 --json --quiet";
    let loss = |precision: &str| {
        json(machine.run_on("cuda", &format!("{evaluate} --precision {precision}")))["loss"].as_f64().unwrap()
    };
    let [exact, rounded] = ["fp32", "tf32"].map(loss);
    assert!(exact != rounded && (exact - rounded).abs() < 1e-2 * exact, "{rounded} for {exact}");
    let bench =
        "bench train resnet20-cifar --batch-size 2 --warmup 0 --steps 1 --repeat 1 --json --quiet --precision tf32";
    let result = json(machine.run_on("cuda", bench));
    assert_eq!(result["precision"], "tf32", "{result}");
}

/// Libraries that are not there are named, with where they were looked for.
#[test]
fn without_its_libraries_a_gpu_is_not_used() {
    let Some(machine) = Machine::new("without_its_libraries_a_gpu_is_not_used") else { return };
    let train = |libraries: &Path| {
        machine.run(&format!("{TRAIN} --steps 1 --out run --device cuda --gpu-libraries {}", libraries.display()))
    };
    let some = machine.path("some");
    fs::create_dir(&some).unwrap();
    fs::write(some.join("libcuda.so.1"), "broken").unwrap();
    train(&some).fails(2, &["cuda cannot be used", "libcuda.so.1 cannot be opened"]);
    let mut missing = vec!["libnvrtc.so (compiler of kernels)", "libcudnn.so (convolutions, attention)"];
    for library in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"] {
        let _ = fs::remove_file(some.join(library));
        fs::copy(machine.mocks.join(library), some.join(library)).unwrap();
        if library != "libnvrtc.so.13" {
            let said = format!("{} was not found; looked in folders named by --gpu-libraries (", missing.remove(0));
            train(&some).fails(2, &[&said, "the Python environment", "the system"]);
        }
    }
    assert!(!machine.path("run").exists());
}

#[test]
fn a_machine_without_a_gpu_says_so() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    let words = "bench infer resnet20-cifar --device cuda --quiet".split(' ');
    let ran = ran(command.current_dir(folder.path()).args(words).env_remove("LD_LIBRARY_PATH"));
    if ran.code == 0 {
        return skip("a_machine_without_a_gpu_says_so", "this machine has a GPU");
    }
    ran.fails(2, &["cuda cannot be used", "bessemer doctor"]);
}

/// The largest batch of a small model is bounded by what kernels count, not by memory, and found all the same.
#[test]
fn steps_are_predicted_for_gpus_that_are_not_there() {
    let folder = TempDir::new().unwrap();
    let models = [("resnet50", "fp16", "h200"), ("bert-base", "bf16", "a100"), ("electra-base", "bf16", "h200")];
    for (model, precision, sheet) in models {
        let begun = Instant::now();
        let words =
            format!("explain {model} --batch-size 64 --precision {precision} --device cuda --sheet {sheet} --json");
        let explained = json(bessemer(folder.path(), &words));
        let predicted = &explained["predicted"];
        assert_eq!(predicted["sheet"], sheet);
        assert!((0.001..1.0).contains(&predicted["all"]["seconds"].as_f64().unwrap()), "{predicted}");
        assert!(explained["largest_batch"].as_u64().unwrap() > 64, "{}", explained["largest_batch"]);
        // Scratch memory of products, and of convolutions where there are some, and three batches.
        let scratch = predicted["scratch_bytes"].as_u64().unwrap();
        let most: u64 = if model == "resnet50" { 512 << 20 } else { 32 << 20 };
        let batches = 3 * if model == "resnet50" { 64 * 224 * 224 * 3 } else { 0 };
        assert!((most + batches..most + batches + 4_000_000).contains(&scratch), "{scratch}");
        assert!(explained["peak_bytes"].as_u64().unwrap() > predicted["arena_bytes"].as_u64().unwrap() + scratch);
        let target = (sheet == "h200").then_some(if model == "resnet50" { 28.9 } else { 43.0 });
        assert_eq!(explained["target"]["milliseconds"].as_f64(), target, "{model}");
        println!("{model} for {sheet}: explained in {:.1} s", begun.elapsed().as_secs_f64());
    }
    let words = "explain electra-base --batch-size 256 --precision bf16 --device cuda --sheet h200";
    let text = bessemer(folder.path(), words).ok().out;
    for said in ["designed for 43.0 ms with 256 sequences", "beside it at most 3", "mostly", "memory", "arithmetic"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let seconds = |precision: &str| {
        let words =
            format!("explain bert-base --batch-size 64 --precision {precision} --device cuda --sheet a100 --json");
        let families = json(bessemer(folder.path(), &words))["predicted"]["families"].clone();
        let products = families.as_array().unwrap().iter().find(|family| family[0] == "matrix products").cloned();
        products.unwrap()[1]["seconds"].as_f64().unwrap()
    };
    let ratio = seconds("fp32") / seconds("tf32");
    // By the data sheet 8 times as fast, where memory is not the limit.
    assert!((4.0..8.0).contains(&ratio), "{ratio}");
    for model in ["efficientdet-d0", "mask-rcnn"] {
        let words = format!("explain {model} --batch-size 1 --device cuda --sheet h200 --json");
        let families = json(bessemer(folder.path(), &words))["predicted"]["families"].to_string();
        assert!(families.contains("\"boxes\""), "{families}");
    }
    for option in ["--sheet h200", "--print-sheet"] {
        let name = option.split(' ').next().unwrap();
        bessemer(folder.path(), &format!("explain resnet50 {option}"))
            .fails(2, &[&format!("{name} is for --device cuda")]);
    }
}

/// A sheet is a file: one that is built in is printed, and read back as it is or with other numbers.
#[test]
fn steps_are_predicted_by_the_sheet_of_a_file() {
    let folder = TempDir::new().unwrap();
    let run = |options: &str| {
        bessemer(folder.path(), &format!("explain resnet20-cifar --batch-size 64 --device cuda {options}"))
    };
    let sheet = run("--sheet a100 --print-sheet").ok().out;
    let written = |name: &str, from: &str, to: &str| {
        assert!(sheet.contains(from), "{from}");
        fs::write(folder.path().join(name), sheet.replacen(from, to, 1)).unwrap();
    };
    written("own.toml", "source = ", "source = ");
    let predicted = |sheet: &str| json(run(&format!("--sheet {sheet} --json")))["predicted"].clone();
    let (built_in, own) = (predicted("a100"), predicted("own.toml"));
    assert_eq!((&own["sheet"], &own["product"]), (&"own.toml".into(), &"NVIDIA A100 SXM 80 GB".into()));
    assert_eq!((&own["families"], &own["all"]), (&built_in["families"], &built_in["all"]));
    assert_eq!(own["measured_seconds"], 0.0);
    written(
        "fast.toml",
        "launch_us = { value = 3.6, origin = \"estimate\" }",
        "launch_us = { value = 0.1, origin = \"measured\" }",
    );
    let seconds = |predicted: &Value| predicted["all"]["seconds"].as_f64().unwrap();
    let launches = own["all"]["launches"].as_f64().unwrap();
    assert!((seconds(&own) - seconds(&predicted("fast.toml")) - launches * 3.5e-6).abs() < 1e-9);
    let text = run("").ok().out;
    for said in
        ["sheet h200: limits: NVIDIA's data sheet", "by efficiencies that were measured", ", measured", ", estimate"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    let bert = "explain bert-tiny --device cuda --no-epilogues";
    assert!(bessemer(folder.path(), bert).ok().out.contains("product to memory, then its fusion: --no-epilogues"));

    written("bad.toml", "launch_us =", "launch =");
    run("--sheet bad.toml")
        .fails(2, &["sheet bad.toml: line 15: unknown field `launch`, expected one of `fp32_tflops`"]);
    written("bad.toml", "value = 3.6,", "value = -3.6,");
    run("--sheet bad.toml").fails(2, &["sheet bad.toml: `limits.launch_us` must be at least 0"]);
    run("--sheet b200").fails(2, &["b200: neither a file nor a sheet that is built in; there are h200, h100, a100"]);
}
