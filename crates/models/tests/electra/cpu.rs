//! Compiled steps against the interpreter.

use crate::support::{JOINT, SEQUENCES, batch, interpreter, options, sgd, small, squad_options, still};
use bessemer_cpu::{CpuOptions, Executor};
use bessemer_ir::DType;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::reference::Interpreter;
use bessemer_models::Model;
use bessemer_models::electra::{
    ElectraOptions, Generator, PretrainingOptions, SpanHead, evaluate, infer_discriminator, infer_generator, squad,
    train,
};

/// The compiled graph with the weights and the batch of a run of the interpreter.
fn executor(model: &Model, reference: &Interpreter<'_>, threads: usize) -> Executor {
    let cpu = CpuOptions { threads, ..CpuOptions::default() };
    let plan = compile(&model.graph, &cpu, &CompileOptions::default()).expect("a legal graph");
    let mut executor = Executor::new(plan, cpu).expect("every operation has a kernel");
    let weights = model.specs.iter().map(|spec| (spec.name.as_str(), reference.input(&spec.name).data.clone()));
    for (name, data) in weights.chain(batch(&model.graph)) {
        let is_int = executor.input_type(name).expect("an input").dtype == DType::I32;
        let bytes = |&x: &f64| if is_int { (x as i32).to_le_bytes() } else { (x as f32).to_le_bytes() };
        executor.write(name, &data.iter().flat_map(bytes).collect::<Vec<u8>>()).expect("an input");
    }
    executor
}

/// Results of the compiled graph against those of the interpreter.
fn runs_on_the_cpu(what: &str, model: &Model) {
    let mut reference = interpreter(model);
    let executors = [1, 2].map(|threads| executor(model, &reference, threads));
    reference.run();
    for mut executor in executors {
        executor.run().expect("a legal batch");
        for (name, _) in model.graph.outputs() {
            let expected = reference.output(name);
            let is_int = expected.ty.dtype == DType::I32;
            let bytes = executor.output(name).expect("an output").chunks_exact(4);
            assert_eq!(bytes.len(), expected.data.len());
            for (four, &expected) in bytes.zip(&expected.data) {
                let four: [u8; 4] = four.try_into().expect("4 bytes");
                let actual = if is_int { i32::from_le_bytes(four).into() } else { f64::from(f32::from_le_bytes(four)) };
                let error = (actual - expected).abs() / expected.abs().max(1.0);
                assert!(error < 1e-4, "{what}: {name} is {actual}, not {expected}");
            }
        }
    }
}

#[test]
fn every_step_runs_on_the_cpu() {
    let config = still(small());
    let network = ElectraOptions::default();
    let variants = [
        options(),
        PretrainingOptions { disallow_correct: true, ..options() },
        PretrainingOptions { generator: Generator::Uniform, ..options() },
        PretrainingOptions { generator: Generator::Batch, ..options() },
        PretrainingOptions { generator: Generator::Uniform, disallow_correct: true, ..options() },
    ];
    for options in variants {
        runs_on_the_cpu("train", &train(&config, SEQUENCES, &options, &sgd()).expect("legal"));
        runs_on_the_cpu("evaluate", &evaluate(&config, SEQUENCES, &options).expect("legal"));
    }
    runs_on_the_cpu("discriminator", &infer_discriminator(&config, SEQUENCES, &network).expect("legal"));
    runs_on_the_cpu("generator", &infer_generator(&config, SEQUENCES, &network).expect("legal"));
    for head in [SpanHead::Plain, JOINT, SpanHead::Joint { beam: 6, may_be_impossible: false }] {
        runs_on_the_cpu("squad", &squad::train(&config, 2, 6, &squad_options(head), &sgd()).expect("legal"));
        runs_on_the_cpu("squad", &squad::predict(&config, 2, 6, &squad_options(head)).expect("legal"));
    }
}
