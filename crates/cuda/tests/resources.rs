//! What the generated kernels take of a multiprocessor. Needs NVIDIA's compiler, which `scripts/fetch_nvrtc.sh` fetches,
//! and no GPU.

mod common;

use bessemer_cuda::cubins::CubinCache;
use bessemer_cuda::kgen::{Kernel, Parameter, text_of};
use bessemer_cuda::loader::{Libraries, Places, Wanted};
use bessemer_cuda::nvrtc::{Nvrtc, resources};
use bessemer_cuda::selftest::cases::small_cases;
use bessemer_cuda::{CudaTarget, kernels_of};
use bessemer_ir::DType;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_models::bert::{BertConfig, BertOptions, Sequences};
use bessemer_models::electra::{ElectraConfig, ElectraOptions, PretrainingOptions, SpanHead, SquadOptions, squad};
use bessemer_models::{LossOptions, Model, bert, efficientdet, electra, find, maskrcnn};
use bessemer_nn::{Adam, Average, Clip, ClipForm, ClipOf, Lamb, Mode, Optimizer, Schedule, Sgd, TrainConfig};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];
/// Registers with which two blocks of 512 threads fit on a multiprocessor.
const MOST_REGISTERS: u32 = 64;
/// Registers with which three blocks of 128 threads, which multiply on tensor cores, fit on it.
const MOST_REGISTERS_OF_PRODUCTS: u32 = 168;
/// Registers of the gradient of queries without tensor cores, which few sizes need: seven blocks of 128 threads fit on a multiprocessor.
const MOST_REGISTERS_OF_PLAIN_QUERIES: u32 = 72;
/// Registers of sums over positions for each weight of some channels, of 16 bits and of `f32`: two blocks of 256 threads, each with many
/// loads under way, fit on a multiprocessor.
const MOST_REGISTERS_OF_DEPTHWISE_WEIGHTS: [u32; 2] = [88, 128];
/// Bytes that a thread may spill whose registers are bounded by the blocks that are to fit on a multiprocessor.
const SPILLED: u32 = 32;
/// Bytes that a thread of attention with heads of more than 64 may spill.
const MOST_SPILLED_OF_DEEP_HEADS: u32 = 192;

/// Where a process of this test finds the texts that it compiles: a folder, its number among so many processes, and architectures.
const PART: &str = "RESOURCES_TEST_PART";

/// Compiles every text for every architecture; what the compiler says of each, in order. `None` without the compiler, which takes
/// one text at a time in a process, so that there is a process for each core.
fn logs_of(texts: &[String], architectures: &[&str]) -> Option<Vec<String>> {
    Libraries::find(Places::of_process(&[])).get(Wanted::Nvrtc)?;
    let folder = tempfile::tempdir().unwrap();
    for (number, text) in texts.iter().enumerate() {
        fs::write(folder.path().join(format!("{number}.cu")), text).unwrap();
    }
    let processes = std::thread::available_parallelism().map_or(1, NonZero::get);
    let start = |number: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let part = [folder.path().display().to_string(), number.to_string(), processes.to_string()];
        let part = part.into_iter().chain(architectures.iter().map(|&name| name.to_owned())).collect::<Vec<_>>();
        command.args(["as_compiler", "--exact", "--nocapture"]).env(PART, part.join("\n")).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let started: Vec<Child> = (0..processes).map(start).collect();
    let ended: Vec<ExitStatus> = started.into_iter().map(|mut child| child.wait().unwrap()).collect();
    assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
    let log = |number: usize, architecture: &str| folder.path().join(format!("{number}.{architecture}"));
    let all =
        (0..texts.len()).flat_map(|number| architectures.iter().map(move |architecture| log(number, architecture)));
    Some(all.map(|file| fs::read_to_string(file).unwrap()).collect())
}

/// Not a test but one process of it.
#[test]
fn as_compiler() {
    let Ok(part) = std::env::var(PART) else { return };
    let [folder, number, processes, architectures @ ..] = &part.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{part}")
    };
    let nvrtc = Nvrtc::open(&Libraries::find(Places::of_process(&[]))).unwrap();
    let own = (number.parse::<usize>().unwrap()..).step_by(processes.parse().unwrap());
    for number in own {
        let file = Path::new(folder).join(format!("{number}.cu"));
        let Ok(text) = fs::read_to_string(&file) else { return };
        for architecture in architectures {
            let compiled = nvrtc.compile("kernels", &text, architecture).unwrap();
            assert!(compiled.cubin.starts_with(b"\x7fELF"), "{text}");
            fs::write(file.with_extension(architecture), compiled.log).unwrap();
        }
    }
}

#[test]
fn all_kernels_compile_without_spills() {
    let all: Vec<Kernel> = small_cases()
        .unwrap()
        .into_iter()
        .flat_map(|case| case.work.launches.into_iter().map(|launch| launch.kernel))
        .collect();
    let texts: Vec<String> = all.iter().map(|kernel| kernel.text.clone()).collect();
    let Some(logs) = logs_of(&texts, &ARCHITECTURES) else {
        return common::skip(
            "resources of kernels",
            "there is no libnvrtc.so; crates/cuda/scripts/fetch_nvrtc.sh gets it",
        );
    };
    let mut report = "kernels:\n".to_owned();
    let mut too_much = Vec::new();
    let each = all.iter().flat_map(|kernel| ARCHITECTURES.map(|architecture| (kernel, architecture)));
    for ((kernel, architecture), log) in each.zip(&logs) {
        let used = resources(log).unwrap_or_else(|| panic!("{}: {log}", kernel.name));
        let line = format!(
            "{:<24} {architecture:<7} {:>3} registers, {} bytes spilled, {} bytes shared",
            kernel.name, used.registers, used.spill_bytes, used.shared_bytes
        );
        report += &format!("  {line}\n");
        // The kernel that has every function is no measure of registers, nor are heads of more than 64.
        let is_unusual = kernel.name == "every_function" || kernel.text.contains("STAGES = 1;");
        let is_product = kernel.text.contains("STAGES = 2;");
        let most = match is_product {
            true => MOST_REGISTERS_OF_PRODUCTS,
            false if kernel.name.starts_with("attention_of_queries_") => MOST_REGISTERS_OF_PLAIN_QUERIES,
            false if kernel.name.starts_with("depthwise_weight") => {
                let is_f32 = matches!(kernel.parameters[0], Parameter::Memory { ty: DType::F32, .. });
                MOST_REGISTERS_OF_DEPTHWISE_WEIGHTS[usize::from(is_f32)]
            }
            false => MOST_REGISTERS,
        };
        let spilled = if is_unusual {
            MOST_SPILLED_OF_DEEP_HEADS
        } else if is_product {
            SPILLED
        } else {
            0
        };
        if used.spill_bytes > spilled || (used.registers > most && !is_unusual) {
            too_much.push(line);
        }
    }
    let _ = std::io::stderr().write_all(report.as_bytes());
    assert!(too_much.is_empty(), "{too_much:#?}");
}

/// Models of published sizes.
const MODELS: [&str; 7] =
    ["resnet50", "efficientnet-b0", "efficientdet-d0", "mask-rcnn", "bert-base", "electra-base", "electra-base-squad"];

/// A training step of a model, or inference.
fn model(name: &str, mode: Mode, batch: usize) -> Model {
    let sgd = || TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        average: Some(Average { decay: 0.9, ramp: true }),
        ..TrainConfig::new(Optimizer::Sgd(Sgd::default()), Schedule::constant(0.1))
    };
    let adam = || TrainConfig::new(Optimizer::Adam(Adam::electra(0.01)), Schedule::constant(1e-3));
    let sequences = sequences(batch);
    let is_training = mode == Mode::Train;
    let made = match name {
        "efficientdet-d0" => {
            let options = efficientdet::find(name).unwrap().options();
            match is_training {
                true => efficientdet::train(&options, &efficientdet::LossOptions::default(), &sgd(), batch),
                false => efficientdet::detect(&options, &efficientdet::DetectionOptions::soft(), batch),
            }
        }
        "mask-rcnn" => {
            let flavour = maskrcnn::Flavour::Nvidia;
            let options = maskrcnn::find(name).unwrap().options(flavour);
            match is_training {
                true => maskrcnn::train(&options, &maskrcnn::TrainingOptions::new(flavour), &sgd(), batch),
                false => maskrcnn::detect(&options, &maskrcnn::DetectionOptions::new(flavour), batch),
            }
        }
        "bert-base" => match is_training {
            true => return bert_step(&BertConfig::base(), batch),
            false => bert::infer(&BertConfig::base(), sequences, &BertOptions::default()),
        },
        "electra-base" => match is_training {
            true => electra::train(&ElectraConfig::base(), sequences, &PretrainingOptions::new(1.0 / 3.0), &adam()),
            false => electra::infer_discriminator(&ElectraConfig::base(), sequences, &ElectraOptions::default()),
        },
        "electra-base-squad" => {
            let head = SpanHead::Joint { beam: 5, may_be_impossible: true };
            let options = SquadOptions { network: ElectraOptions::default(), head };
            match is_training {
                true => squad::train(&ElectraConfig::base(), batch, 384, &options, &adam()),
                false => squad::predict(&ElectraConfig::base(), batch, 384, &options),
            }
        }
        classifier => {
            let spec = find(classifier).unwrap();
            match is_training {
                true => Model::train(spec.architecture, &spec.options(), &LossOptions::default(), &sgd(), batch),
                false => Model::infer(spec.architecture, &spec.options(), batch),
            }
        }
    };
    made.unwrap()
}

/// A step of BERT's pre-training.
fn bert_step(config: &BertConfig, batch: usize) -> Model {
    let lamb = TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3));
    bert::train(config, sequences(batch), &BertOptions::default(), &lamb).unwrap()
}

fn sequences(batch: usize) -> Sequences {
    Sequences { batch, length: 128, predictions: 20 }
}

/// What a plan of the model launches.
fn kernels_in(model: &Model, precision: DType) -> Vec<Kernel> {
    let options = CompileOptions { precision, ..CompileOptions::default() };
    kernels_of(&compile(&model.graph, &CudaTarget, &options).unwrap())
}

/// Compiles what plans of these models launch, a name, a mode, a precision and a batch size each.
fn compile_all(architectures: &[&str], models: impl IntoIterator<Item = (&'static str, Mode, DType, usize)>) {
    let mut kernels = BTreeMap::new();
    for (name, mode, precision, batch) in models {
        let own = kernels_in(&model(name, mode, batch), precision);
        let _ = writeln!(std::io::stderr(), "{name}, {mode:?}, {precision}, batch {batch}: {} kernels", own.len());
        kernels.extend(own.into_iter().map(|kernel| (kernel.name.clone(), kernel)));
    }
    let kernels: Vec<Kernel> = kernels.into_values().collect();
    let _ = writeln!(std::io::stderr(), "{} different kernels", kernels.len());
    let texts: Vec<String> = kernels.chunks(16).map(text_of).collect();
    let Some(logs) = logs_of(&texts, architectures) else {
        return common::skip("kernels of models", "there is no libnvrtc.so");
    };
    let spills = |log: &&String| resources(log).unwrap_or_else(|| panic!("{log}")).spill_bytes > SPILLED;
    let too_much: Vec<&String> = logs.iter().filter(spills).collect();
    assert!(too_much.is_empty(), "spills: {too_much:#?}");
}

#[test]
fn kernels_of_whole_models_compile() {
    let models = [
        ("resnet50", Mode::Train, DType::F16, 32),
        ("efficientnet-b0", Mode::Train, DType::F32, 32),
        ("bert-base", Mode::Train, DType::Bf16, 8),
        ("mask-rcnn", Mode::Infer, DType::F32, 2),
        ("efficientdet-d0", Mode::Train, DType::F32, 4),
        ("efficientdet-d0", Mode::Infer, DType::F32, 4),
        ("mask-rcnn", Mode::Train, DType::F32, 2),
    ];
    compile_all(&ARCHITECTURES[1..], models);
}

#[test]
#[ignore = "takes 23 minutes of processor time"]
fn kernels_of_all_models_compile_in_each_precision() {
    compile_all(
        &ARCHITECTURES,
        MODELS.into_iter().flat_map(|name| {
            let batches = if name == "mask-rcnn" { [1, 2] } else { [4, 32] };
            let precisions = [DType::F32, DType::Bf16, DType::F16];
            let of_mode = move |mode| {
                precisions.into_iter().flat_map(move |precision| batches.map(|batch| (name, mode, precision, batch)))
            };
            [Mode::Train, Mode::Infer].into_iter().flat_map(of_mode)
        }),
    );
}

/// Layers differ by the streams of their dropout, which are given at launches.
#[test]
fn layers_share_their_kernels() {
    let names = |num_hidden_layers| -> Vec<String> {
        let model = bert_step(&BertConfig { num_hidden_layers, ..BertConfig::base() }, 8);
        kernels_in(&model, DType::Bf16).into_iter().map(|kernel| kernel.name).collect()
    };
    let (of_three, of_five) = (names(3), names(5));
    let new: Vec<&String> = of_five.iter().filter(|name| !of_three.contains(name)).collect();
    assert!(new.is_empty(), "of {}: {new:#?}", of_five.len());
}

#[test]
fn images_of_the_compiler_are_kept() {
    let libraries = Libraries::find(Places::of_process(&[]));
    if libraries.get(Wanted::Nvrtc).is_none() {
        return common::skip("images of the compiler", "there is no libnvrtc.so");
    }
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cache = CubinCache::new(folder.path());
    let text = "extern \"C\" __global__ void twice(float* x) { __shared__ float y[32]; y[threadIdx.x] = x[threadIdx.x]; \
                __syncthreads(); x[threadIdx.x] = y[31 - threadIdx.x] * 2; }";
    for architecture in ARCHITECTURES {
        assert!(!cache.get(&nvrtc, "twice", text, architecture).unwrap().1, "{architecture}");
        assert!(cache.get(&nvrtc, "twice", text, architecture).unwrap().1, "{architecture}: it is not taken as whole");
    }
}

#[test]
fn errors_in_the_text_are_told_with_their_lines() {
    let libraries = Libraries::find(Places::of_process(&[]));
    let Some(_) = libraries.get(Wanted::Nvrtc) else {
        return common::skip("errors of the compiler", "there is no libnvrtc.so");
    };
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let reported = nvrtc.compile("broken", "__global__ void f() { nonsense; }", "sm_80").unwrap_err().to_string();
    assert!(reported.contains("broken.cu(1): error: identifier \"nonsense\" is undefined"), "{reported}");
    let reported = nvrtc.compile("fine", "__global__ void f() {}", "sm_1").unwrap_err().to_string();
    assert!(reported.contains("invalid value for --gpu-architecture"), "{reported}");
}
