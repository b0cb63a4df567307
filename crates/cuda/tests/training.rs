//! Steps of training of whole models over the mock of a GPU, compared with those of the CPU on the same graphs.

mod common;
#[path = "common/device.rs"]
mod device;

use bessemer_cpu::{CpuDevice, CpuOptions};
use bessemer_cuda::CudaTarget;
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{LoweredKernel, Refusal, Target};
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{Device, StateBinding, StateLayout, read_f32};
use bessemer_ir::{DType, Graph, NodeId, Role, philox};
use bessemer_models::bert::{BertConfig, BertOptions, Sequences};
use bessemer_models::{LossOptions, Model, bert, find};
use bessemer_nn::{
    Average, Clip, ClipForm, ClipOf, DecayExclude, Lamb, Optimizer, Schedule, Sgd, TrainConfig, initialise,
};
use common::mock_or_skip;
use device::open;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The CPU as a target of graphs that are compiled by the rules of GPUs.
struct CpuByRulesOfGpus(CpuOptions);

impl Target for CpuByRulesOfGpus {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn rules(&self) -> &Rules {
        &CudaTarget::RULES
    }

    fn lower(
        &self,
        graph: &Graph,
        node: NodeId,
        invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        self.0.lower(graph, node, invariant)
    }
}

/// What becomes of a model in some steps: the scalars of each, and all state behind the last one.
#[derive(PartialEq)]
struct Outcome {
    scalars: Vec<Vec<(String, f32)>>,
    state: BTreeMap<String, Vec<f32>>,
}

const STEPS: usize = 3;

/// Content of a feed for a micro-batch: integers below `most`, or normal numbers.
fn content(name: &str, dtype: DType, elements: usize, most: usize, batch: usize) -> Vec<u8> {
    let uniform = |i: usize| philox::uniform(name.len() as u64, batch as u32, 3, i as u64);
    let of = |i: usize| match dtype {
        DType::F32 if name.ends_with("weights") => 1.0f32.to_ne_bytes().to_vec(),
        DType::F32 => philox::normal(7, batch as u32, 4, i as u64).to_ne_bytes().to_vec(),
        DType::I32 => ((uniform(i) * most as f32) as i32).to_ne_bytes().to_vec(),
        DType::U8 => vec![(uniform(i) * 256.0) as u8],
        other => panic!("a feed of {other}"),
    };
    (0..elements).flat_map(of).collect()
}

fn train(
    device: &dyn Device,
    target: &dyn Target,
    model: &Model,
    micro_batches: usize,
    most: &dyn Fn(&str) -> usize,
) -> Outcome {
    let plan = compile(&model.graph, target, &CompileOptions::default()).unwrap();
    let state = device.new_state(StateLayout::of_plan(&plan)).unwrap();
    for spec in model.specs.iter().filter(|spec| state.layout().number(&spec.name).is_ok()) {
        let content = initialise(spec, 5);
        match spec.ty.dtype {
            DType::I32 => {
                let content: Vec<u8> = content.iter().flat_map(|&x| (x as i32).to_ne_bytes()).collect();
                state.write(&spec.name, &content).unwrap();
            }
            _ => state.write(&spec.name, bytemuck::cast_slice(&content)).unwrap(),
        }
    }
    let mut executor = device.load(plan, &state, &StateBinding::default()).unwrap();
    let inputs = model.graph.inputs().filter(|(_, input)| input.role == Role::Feed);
    let feeds: Vec<_> = inputs.map(|(_, input)| (input.name.clone(), input.ty.clone())).collect();
    let mut scalars = Vec::new();
    for step in 0..STEPS {
        for micro_batch in 0..micro_batches {
            for (name, ty) in &feeds {
                let batch = step * micro_batches + micro_batch;
                let bytes = content(name, ty.dtype, ty.shape.elements(), most(name), batch);
                executor.feed(&[(name, &bytes)]).unwrap();
            }
            if micro_batch + 1 < micro_batches {
                executor.accumulate().unwrap();
            }
        }
        scalars.push(executor.run().unwrap().scalars.clone());
    }
    let floats = state.layout().tensors().iter().filter(|tensor| tensor.ty.dtype == DType::F32);
    let state = floats.map(|tensor| (tensor.name.clone(), read_f32(&*state, &tensor.name).unwrap())).collect();
    Outcome { scalars, state }
}

/// The largest difference that was seen, and of what.
#[derive(Default)]
struct Worst(f32, String);

impl Worst {
    fn note(&mut self, error: f32, what: impl FnOnce() -> String) {
        // An error that is NaN is the worst.
        if !matches!(error.partial_cmp(&self.0), Some(Ordering::Less | Ordering::Equal)) {
            *self = Worst(error, what());
        }
    }

    fn check(&self, test: &str, allowed: f32) {
        println!("{test}: {} differs by {:.1e}, {allowed:.0e} are allowed", self.1, self.0);
        assert!(self.0 <= allowed, "{test}: {} differs by {:.1e}, {allowed:.0e} are allowed", self.1, self.0);
    }
}

/// Allowed between scalars of steps, relative to themselves.
const OF_SCALARS: f32 = 1e-5;

/// Trains on both devices and compares: scalars, and each tensor of the state relative to its largest element.
fn compare(test: &str, model: &Model, micro_batches: usize, of_state: f32, most: &dyn Fn(&str) -> usize) {
    let Some(folder) = mock_or_skip(test) else { return };
    let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
    let expected = train(&CpuDevice::new(cpu), &CpuByRulesOfGpus(cpu), model, micro_batches, most);
    let train_on_gpu = |eager| {
        let gpu = open(folder, eager).unwrap();
        let outcome = train(&gpu, gpu.target(), model, micro_batches, most);
        assert_eq!(gpu.memory(), [], "{test}: memory is released");
        outcome
    };
    let actual = train_on_gpu(false);
    assert!(actual == train_on_gpu(true), "{test}: steps that are replayed differ from those that are launched");
    let (mut scalars, mut tensors) = (Worst::default(), Worst::default());
    for (step, (expected, actual)) in expected.scalars.iter().zip(&actual.scalars).enumerate() {
        assert!(expected.iter().map(|(name, _)| name).eq(actual.iter().map(|(name, _)| name)));
        for ((name, x), (_, y)) in expected.iter().zip(actual) {
            scalars.note((x - y).abs() / x.abs().max(1e-3), || format!("{name} of step {step}, {y} for {x},"));
        }
    }
    assert!(expected.state.keys().eq(actual.state.keys()));
    for (name, x) in &expected.state {
        let largest = x.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
        for (x, y) in x.iter().zip(&actual.state[name]) {
            tensors.note((x - y).abs() / largest, || name.clone());
        }
    }
    scalars.check(test, OF_SCALARS);
    tensors.check(test, of_state);
}

#[test]
fn three_steps_of_a_resnet() {
    let spec = find("resnet20-cifar").unwrap();
    let options = bessemer_models::ModelOptions { image_size: [16, 16], ..spec.options() };
    let sgd = Sgd { momentum: 0.9, weight_decay: 1e-4, decay_exclude: DecayExclude::BnSubstring, ..Sgd::default() };
    let config = TrainConfig {
        average: Some(Average { decay: 0.9, ramp: false }),
        report_grad_norm: true,
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.01))
    };
    let model = Model::train(spec.architecture, &options, &LossOptions::default(), &config, 4).unwrap();
    compare("three_steps_of_a_resnet", &model, 1, 1e-5, &|_| 10);
}

#[test]
fn three_steps_of_a_bert_of_two_micro_batches() {
    let config =
        BertConfig { vocab_size: 500, num_hidden_layers: 2, max_position_embeddings: 32, ..BertConfig::tiny() };
    let sequences = Sequences { batch: 2, length: 16, predictions: 3 };
    let train = TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        accumulation: 2,
        ..TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3))
    };
    let model = bert::train(&config, sequences, &BertOptions::default(), &train).unwrap();
    let most = |name: &str| match name {
        "segment_ids" | "next_sentence_labels" => 2,
        "masked_lm_positions" => 16,
        // A mask of ones and zeros.
        "input_mask" => 2,
        _ => 500,
    };
    // LAMB divides gradients by their own size, so that roundings of the smallest ones show in biases, which begin at zero. Two
    // instruction sets of the CPU differ by 1.2e-5.
    compare("three_steps_of_a_bert_of_two_micro_batches", &model, 2, 5e-5, &most);
}
