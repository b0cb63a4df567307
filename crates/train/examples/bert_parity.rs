//! Compares BERT-base at full size with an independent implementation: losses and every gradient.
//!
//! ```text
//! python peers/pytorch/export_bert_parity.py --out DIR
//! cargo run --release -p bessemer-train --example bert_parity -- DIR
//! ```
//!
//! The reference is a float64 run. Exits with 1 if anything is farther from it than the tolerances allow.
#![forbid(unsafe_code)]

use bessemer_cpu::{CpuOptions, Executor};
use bessemer_ir::Value;
use bessemer_ir::autodiff::gradients;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_models::bert::{BertConfig, BertOptions, Sequences, forward_loss};
use bessemer_models::{ExternalTensor, load_into};
use bessemer_nn::ParamSpec;
use bessemer_train::NamedTensor;
use bessemer_train::checkpoint::read_safetensors;
use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// Largest relative distance of a loss.
const LOSS: f64 = 1e-4;
/// Largest relative L2 distance of a gradient.
const GRADIENT: f64 = 1e-3;
/// Gradients of a norm below this share of the largest one are measured by that share: those of the keys' biases are nothing
/// but rounding.
const SMALL: f64 = 1e-6;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Tensors = HashMap<String, NamedTensor<'static>>;

fn main() -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: bert_parity DIR, a folder written by export_bert_parity.py");
        return ExitCode::from(2);
    };
    match run(Path::new(&dir)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("{failures} values are farther from the reference than allowed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn by_name(path: &Path) -> Result<Tensors> {
    Ok(read_safetensors(path)?.into_iter().map(|t| (t.name.to_string(), t)).collect())
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

fn norm_of(tensor: &[f32]) -> f64 {
    norm(tensor.iter().map(|&x| f64::from(x)))
}

/// Prints a distance; 1 if it is larger than allowed.
fn check(what: &str, value: f64, allowed: f64) -> usize {
    let failed = value > allowed || value.is_nan();
    println!("{what:<62} {value:9.2e}  allowed {allowed:8.2e}{}", if failed { "  FAILED" } else { "" });
    usize::from(failed)
}

/// Number of values that are too far from the reference.
fn run(dir: &Path) -> Result<usize> {
    let feeds = by_name(&dir.join("feeds.safetensors"))?;
    let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("expected.json"))?)?;
    let (mut executor, params) = forward_backward(dir, &feeds)?;
    executor.run()?;

    let mut failures = 0;
    for (name, loss) in expected["losses"].as_object().ok_or("expected.json lacks losses")? {
        let loss = loss.as_f64().ok_or("a loss in expected.json is no number")?;
        failures += check(name, (f64::from(executor.scalar(name)?) / loss - 1.0).abs(), LOSS);
    }
    let gradients = by_name(&dir.join("gradients.safetensors"))?;
    let reference = |param: &ParamSpec| gradients.get(&param.name).ok_or(format!("no gradient of {}", param.name));
    let mut least = 0.0f64;
    for param in &params {
        least = least.max(SMALL * norm_of(&reference(param)?.to_f32()?));
    }
    for param in &params {
        let (actual, expected) = (executor.output_f32(&param.name)?, reference(param)?.to_f32()?);
        let difference = norm(actual.iter().zip(&expected).map(|(&a, &b)| f64::from(a) - f64::from(b)));
        failures += check(&param.name, difference / norm_of(&expected).max(least), GRADIENT);
    }
    Ok(failures)
}

/// A step's forward and backward pass with the exported weights and feeds, and its parameters; their gradients are outputs.
fn forward_backward(dir: &Path, feeds: &Tensors) -> Result<(Executor, Vec<ParamSpec>)> {
    let still = BertConfig { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, ..BertConfig::base() };
    let (tokens, words) = (&feeds["input_ids"].shape, &feeds["masked_lm_ids"].shape);
    let sequences = Sequences { batch: tokens[0], length: tokens[1], predictions: words[1] };
    let (mut builder, loss) = forward_loss(&still, sequences, &BertOptions::default())?;
    let params = builder.specs().to_vec();
    let values: Vec<Value> = params.iter().map(|spec| spec.value).collect();
    let grads = gradients(&mut builder.graph, loss, &values)?;
    builder.graph.output("loss", loss);
    for (param, grad) in params.iter().zip(grads) {
        builder.graph.output(&param.name, grad);
    }
    let cpu = CpuOptions::default();
    let mut executor = Executor::new(compile(&builder.graph, &cpu, &CompileOptions::default())?, cpu)?;
    let weights = read_safetensors(&dir.join("weights.safetensors"))?;
    let data: Vec<Vec<f32>> = weights.iter().map(NamedTensor::to_f32).collect::<std::result::Result<_, _>>()?;
    let external = weights.iter().zip(&data).map(|(t, data)| ExternalTensor { name: &t.name, shape: &t.shape, data });
    for (spec, values) in load_into(&params, &external.collect::<Vec<_>>())? {
        executor.write_f32(&spec.name, &values)?;
    }
    for (name, tensor) in feeds {
        executor.write(name, &tensor.data)?;
    }
    Ok((executor, params))
}
