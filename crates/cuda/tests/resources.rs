//! What the generated kernels take of a multiprocessor. Needs NVIDIA's compiler, which `scripts/fetch_nvrtc.sh` fetches,
//! and no GPU.

mod common;

use bessemer_cuda::kgen::{Kernel, text_of};
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
use std::io::Write;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];
/// Registers with which two blocks of 512 threads fit on a multiprocessor.
const MOST_REGISTERS: u32 = 64;
/// Registers with which three blocks of 128 threads, which multiply on tensor cores, fit on it.
const MOST_REGISTERS_OF_PRODUCTS: u32 = 168;
/// Registers of the gradient of queries without tensor cores, which few sizes need: seven blocks of 128 threads fit on a multiprocessor.
const MOST_REGISTERS_OF_PLAIN_QUERIES: u32 = 72;
/// Registers of sums over positions for each weight of some channels: two blocks of 256 threads, each with many loads under way, fit on a
/// multiprocessor.
const MOST_REGISTERS_OF_DEPTHWISE_WEIGHTS: u32 = 88;
/// Bytes that a thread may spill whose registers are bounded by the blocks that are to fit on a multiprocessor.
const SPILLED: u32 = 32;
/// Bytes that a thread of attention with heads of more than 64 may spill.
const MOST_SPILLED_OF_DEEP_HEADS: u32 = 192;

#[test]
fn all_kernels_compile_without_spills() {
    let libraries = Libraries::find(Places::of_process(&[]));
    if libraries.get(Wanted::Nvrtc).is_none() {
        return common::skip(
            "resources of kernels",
            "there is no libnvrtc.so; crates/cuda/scripts/fetch_nvrtc.sh gets it",
        );
    }
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let all: Vec<Kernel> = small_cases()
        .unwrap()
        .into_iter()
        .flat_map(|case| case.work.launches.into_iter().map(|launch| launch.kernel))
        .collect();
    let mut report = format!("kernels by NVRTC {}.{}:\n", nvrtc.version().0, nvrtc.version().1);
    let mut too_much = Vec::new();
    for kernel in &all {
        for architecture in ARCHITECTURES {
            let compiled = nvrtc.compile(&kernel.name, &kernel.text, architecture).unwrap();
            assert!(compiled.cubin.starts_with(b"\x7fELF"), "{}", kernel.name);
            let used = resources(&compiled.log).unwrap_or_else(|| panic!("{}: {}", kernel.name, compiled.log));
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
                false if kernel.name.starts_with("depthwise_weight") => MOST_REGISTERS_OF_DEPTHWISE_WEIGHTS,
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
    let lamb = || TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3));
    let adam = || TrainConfig::new(Optimizer::Adam(Adam::electra(0.01)), Schedule::constant(1e-3));
    let sequences = Sequences { batch, length: 128, predictions: 20 };
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
            true => bert::train(&BertConfig::base(), sequences, &BertOptions::default(), &lamb()),
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

/// Compiles what plans of these models launch, a name, a mode, a precision and a batch size each.
fn compile_all(architectures: &[&str], models: impl IntoIterator<Item = (&'static str, Mode, DType, usize)>) {
    let libraries = Libraries::find(Places::of_process(&[]));
    let Some(_) = libraries.get(Wanted::Nvrtc) else {
        return common::skip("kernels of models", "there is no libnvrtc.so");
    };
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let mut kernels = BTreeMap::new();
    for (name, mode, precision, batch) in models {
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let plan = compile(&model(name, mode, batch).graph, &CudaTarget, &options).unwrap();
        let own = kernels_of(&plan);
        let _ = writeln!(std::io::stderr(), "{name}, {mode:?}, {precision}, batch {batch}: {} kernels", own.len());
        kernels.extend(own.into_iter().map(|kernel| (kernel.name.clone(), kernel)));
    }
    let kernels: Vec<Kernel> = kernels.into_values().collect();
    let _ = writeln!(std::io::stderr(), "{} different kernels", kernels.len());
    let texts: Vec<String> = kernels.chunks(16).map(text_of).collect();
    let (next, too_much) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let compile_next = || {
        while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
            for architecture in architectures {
                let compiled = nvrtc.compile("models", text, architecture).unwrap();
                let used = resources(&compiled.log).unwrap_or_else(|| panic!("{}", compiled.log));
                if used.spill_bytes > SPILLED {
                    *too_much.lock().unwrap() += &format!("{architecture}: {}", compiled.log);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(compile_next))));
    let too_much = too_much.into_inner().unwrap();
    assert!(too_much.is_empty(), "spills:\n{too_much}");
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
#[ignore = "compiles for an hour on two cores"]
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
