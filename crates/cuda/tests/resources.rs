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
use bessemer_models::{LossOptions, Model, bert, efficientdet, find, maskrcnn};
use bessemer_nn::{Average, Clip, ClipForm, ClipOf, Lamb, Optimizer, Schedule, Sgd, TrainConfig};
use std::collections::BTreeMap;
use std::io::Write;

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];
/// Registers with which two blocks of 512 threads fit on a multiprocessor.
const MOST_REGISTERS: u32 = 64;
/// Registers with which three blocks of 128 threads, which multiply on tensor cores, fit on it.
const MOST_REGISTERS_OF_PRODUCTS: u32 = 168;
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
            let most = if is_product { MOST_REGISTERS_OF_PRODUCTS } else { MOST_REGISTERS };
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

/// Steps of training of published sizes.
fn models() -> Vec<(&'static str, DType, Model)> {
    let sgd = || TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        average: Some(Average { decay: 0.9, ramp: true }),
        ..TrainConfig::new(Optimizer::Sgd(Sgd::default()), Schedule::constant(0.1))
    };
    let lamb = || TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3));
    let classifier = |name: &str| {
        let spec = find(name).unwrap();
        Model::train(spec.architecture, &spec.options(), &LossOptions::default(), &sgd(), 32).unwrap()
    };
    let sequences = Sequences { batch: 8, length: 128, predictions: 20 };
    let boxes = efficientdet::find("efficientdet-d0").unwrap().options();
    let flavour = maskrcnn::Flavour::Nvidia;
    let masks = maskrcnn::find("mask-rcnn").unwrap().options(flavour);
    let training = maskrcnn::TrainingOptions::new(flavour);
    let detection = maskrcnn::DetectionOptions::new(flavour);
    vec![
        ("resnet50", DType::F16, classifier("resnet50")),
        ("efficientnet-b0", DType::F32, classifier("efficientnet-b0")),
        (
            "efficientdet-d0",
            DType::F32,
            efficientdet::train(&boxes, &efficientdet::LossOptions::default(), &sgd(), 4).unwrap(),
        ),
        (
            "efficientdet-d0, inference",
            DType::F32,
            efficientdet::detect(&boxes, &efficientdet::DetectionOptions::soft(), 4).unwrap(),
        ),
        ("mask-rcnn", DType::F32, maskrcnn::train(&masks, &training, &sgd(), 2).unwrap()),
        ("mask-rcnn, inference", DType::F32, maskrcnn::detect(&masks, &detection, 2).unwrap()),
        (
            "bert-base",
            DType::Bf16,
            bert::train(&BertConfig::base(), sequences, &BertOptions::default(), &lamb()).unwrap(),
        ),
    ]
}

#[test]
fn kernels_of_whole_models_compile() {
    let libraries = Libraries::find(Places::of_process(&[]));
    let Some(_) = libraries.get(Wanted::Nvrtc) else {
        return common::skip("kernels of models", "there is no libnvrtc.so");
    };
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let mut kernels = BTreeMap::new();
    for (name, precision, model) in models() {
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let own = kernels_of(&compile(&model.graph, &CudaTarget, &options).unwrap());
        let _ = writeln!(std::io::stderr(), "{name}, {precision}: {} kernels", own.len());
        kernels.extend(own.into_iter().map(|kernel| (kernel.name.clone(), kernel)));
    }
    let kernels: Vec<Kernel> = kernels.into_values().collect();
    let mut too_much = Vec::new();
    for some in kernels.chunks(16) {
        for architecture in ARCHITECTURES {
            let text = text_of(some);
            let compiled = nvrtc.compile("models", &text, architecture).unwrap();
            let used = resources(&compiled.log).unwrap_or_else(|| panic!("{}", compiled.log));
            if used.spill_bytes > SPILLED {
                too_much.push(format!("{architecture}: {}", compiled.log));
            }
        }
    }
    assert!(too_much.is_empty(), "spills:\n{}", too_much.concat());
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
