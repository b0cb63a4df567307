//! What comparisons at full size share: the command line, exported tensors, a graph with gradients as results, distances.

use bessemer_cpu::{CpuOptions, Executor};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::{Graph, Value};
use bessemer_models::{ExternalTensor, WeightNames, load_into};
use bessemer_nn::{Builder, ParamSpec};
use bessemer_weights::{NamedTensor, read_safetensors};
use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// Gradients of a norm below this share of the largest one are measured by that share: those of the keys' biases, which a softmax
/// takes away again, are nothing but rounding.
const SMALL: f64 = 1e-6;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;
pub(crate) type Tensors = HashMap<String, NamedTensor<'static>>;

/// Runs a comparison with the folder of the command line, written by `script`. It gives the number of values that are too far from
/// the reference.
pub(crate) fn compare(name: &str, script: &str, run: impl FnOnce(&Path) -> Result<usize>) -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: {name} DIR, a folder written by {script}");
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

pub(crate) fn by_name(path: &Path) -> Result<Tensors> {
    Ok(read_safetensors(path)?.into_iter().map(|t| (t.name.to_string(), t)).collect())
}

/// What the peer said besides tensors.
pub(crate) fn expected(dir: &Path) -> Result<serde_json::Value> {
    Ok(serde_json::from_slice(&std::fs::read(dir.join("expected.json"))?)?)
}

/// Prints a distance; 1 if it is larger than allowed.
pub(crate) fn check(what: &str, value: f64, allowed: f64) -> usize {
    let failed = value > allowed || value.is_nan();
    println!("{what:<62} {value:9.2e}  allowed {allowed:8.2e}{}", if failed { "  FAILED" } else { "" });
    usize::from(failed)
}

/// `|actual - expected|` in the L2 norm, as a share of `|expected|` or of `least`, whichever is more.
pub(crate) fn distance(actual: &[f32], expected: &[f32], least: f64) -> f64 {
    let difference = norm(actual.iter().zip(expected).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    difference / norm_of(expected).max(least).max(f64::MIN_POSITIVE)
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

fn norm_of(tensor: &[f32]) -> f64 {
    norm(tensor.iter().map(|&x| f64::from(x)))
}

/// An executor of the graph with the exported weights and these feeds.
pub(crate) fn executor<'a>(
    dir: &Path,
    graph: &Graph,
    specs: &[ParamSpec],
    names: &WeightNames,
    feeds: impl IntoIterator<Item = (&'a str, &'a NamedTensor<'static>)>,
) -> Result<Executor> {
    let cpu = CpuOptions::default();
    let mut executor = Executor::new(compile(graph, &cpu, &CompileOptions::default())?, cpu)?;
    let mut weights = read_safetensors(&dir.join("weights.safetensors"))?;
    // Counts, which are no floats.
    weights.retain(|tensor| !tensor.name.ends_with(".num_batches_tracked"));
    let data: Vec<Vec<f32>> = weights.iter().map(NamedTensor::to_f32).collect::<std::result::Result<_, _>>()?;
    let external = weights.iter().zip(&data).map(|(t, data)| ExternalTensor { name: &t.name, shape: &t.shape, data });
    for (spec, values) in load_into(specs, names, &external.collect::<Vec<_>>())? {
        executor.write_f32(&spec.name, &values)?;
    }
    for (name, tensor) in feeds {
        executor.write(name, &tensor.data)?;
    }
    Ok(executor)
}

/// A step's forward and backward pass.
pub(crate) struct Pass {
    pub graph: Graph,
    /// All tensors of the model.
    pub specs: Vec<ParamSpec>,
    /// Those that are trained; the graph's outputs of their names are their gradients.
    params: Vec<ParamSpec>,
}

impl Pass {
    /// Adds the backward pass, and the outputs `loss` and each parameter's gradient.
    pub(crate) fn of((mut builder, loss): (Builder, Value)) -> Result<Pass> {
        let params: Vec<ParamSpec> = builder.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
        let values: Vec<Value> = params.iter().map(|spec| spec.value).collect();
        let grads = gradients(&mut builder.graph, loss, &values)?;
        builder.graph.output("loss", loss);
        for (param, grad) in params.iter().zip(grads) {
            builder.graph.output(&param.name, grad);
        }
        let (graph, specs) = builder.finish();
        Ok(Pass { graph, specs, params })
    }

    /// Checks all gradients of a run against `gradients.safetensors`; the number of those farther off than allowed by name.
    pub(crate) fn check_gradients(
        &self,
        dir: &Path,
        executor: &Executor,
        allowed: impl Fn(&str) -> f64,
    ) -> Result<usize> {
        let expected = by_name(&dir.join("gradients.safetensors"))?;
        let expected: Vec<Vec<f32>> = self
            .params
            .iter()
            .map(|param| Ok(expected.get(&param.name).ok_or(format!("no gradient of {}", param.name))?.to_f32()?))
            .collect::<Result<_>>()?;
        let least = SMALL * expected.iter().map(|gradient| norm_of(gradient)).fold(0.0, f64::max);
        let mut failures = 0;
        for (param, expected) in self.params.iter().zip(&expected) {
            let actual = param.to_external(executor.output_f32(&param.name)?);
            failures += check(&param.name, distance(&actual, expected, least), allowed(&param.name));
        }
        Ok(failures)
    }
}
