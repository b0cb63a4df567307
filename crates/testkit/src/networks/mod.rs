//! Random training steps: many operations in one graph, as no case has them beside each other, with gradients, state that the
//! step replaces, and outputs that share their memory with others.

mod build;

use crate::problem::{Draw, Drawn, Outputs, Steps, Tensors, values_of};
use crate::runner::Backend;
use bessemer_ir::ops::conv::Filter;
use bessemer_ir::passes::buckets::BucketOptions;
use bessemer_ir::passes::recompute::Recompute;
use bessemer_ir::passes::{CompileOptions, optional_pass_names, pass_names, run_passes};
use bessemer_ir::rules::{ChainRules, ColumnRules, PrologueRules, Rules};
use bessemer_ir::{DType, Graph, GraphError};
use std::ops::Range;

/// The variable that names other seeds than a test usually takes, as `FIRST..END`.
const SEEDS: &str = "BESSEMER_TEST_SEEDS";

/// Which functions a network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Functions {
    /// Those whose derivatives are continuous, so that results and gradients move no more than roundings do.
    Smooth,
    /// The others too: ReLU, largest and smallest elements, comparisons, roundings to 16 bits.
    Any,
}

/// A network drawn by a seed, with the content of its inputs.
pub struct Network {
    drawn: Drawn,
    functions: Functions,
    seed: u64,
}

/// A network whose results are wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{functions:?} network {seed}, {place}: {problem}")]
pub struct NetworkFailure {
    functions: Functions,
    seed: u64,
    place: String,
    problem: String,
}

/// Checks the networks of some seeds, or of those that the variable `BESSEMER_TEST_SEEDS` names (`1000..2000`): each with any functions in `f32`,
/// and with smooth ones in every precision.
///
/// # Errors
/// All failures, one a line.
///
/// # Panics
/// If the variable is not of that form.
pub fn check_networks(
    usual: Range<u64>,
    check: impl Fn(&Network, &CompileOptions) -> Result<(), NetworkFailure>,
) -> Result<(), String> {
    let chosen = std::env::var(SEEDS).ok().map(|text| {
        let range = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
        range.unwrap_or_else(|| panic!("{SEEDS} is `{text}`, expected FIRST..END"))
    });
    let mut failures = String::new();
    for seed in chosen.unwrap_or(usual) {
        for (functions, precision) in [
            (Functions::Any, DType::F32),
            (Functions::Smooth, DType::F32),
            (Functions::Smooth, DType::Bf16),
            (Functions::Smooth, DType::F16),
        ] {
            let network = Network::draw(functions, seed).map_err(|error| error.to_string())?;
            let options = network.options(precision);
            if let Err(failure) = check(&network, &options) {
                failures += &format!("{failure}\n    compiled with {options:?}\n");
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

impl Network {
    /// The network of a seed.
    ///
    /// # Errors
    /// Never for what it draws.
    pub fn draw(functions: Functions, seed: u64) -> Result<Network, GraphError> {
        Ok(Network { drawn: build::build(functions, seed)?.drawn(seed), functions, seed })
    }

    /// Its number.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Ranks whose sums it has.
    pub fn ranks(&self) -> usize {
        self.drawn.ranks
    }

    fn graph(&self) -> &Graph {
        &self.drawn.graph
    }

    /// Steps that it runs, by its seed.
    fn steps(&self) -> Steps {
        let has_micro_batches = self.graph().updates().iter().any(|&(state, _)| self.graph().is_per_micro_batch(state));
        let micro_batches = if has_micro_batches { 1 + self.seed as usize % 2 } else { 1 };
        Steps { steps: 1 + self.seed as usize / 2 % 2, micro_batches, ranks: self.ranks() }
    }

    /// How it is compiled, by its seed: mostly with all passes, sometimes without one or op by op, and with each kind of recomputation.
    fn options(&self, precision: DType) -> CompileOptions {
        let mut d = Draw::new(self.seed ^ 1 << 40);
        let recompute = Recompute::ALL[d.int(0, Recompute::ALL.len() - 1)];
        let optional: Vec<&str> = optional_pass_names().collect();
        let left_out = optional[d.int(0, optional.len() - 1)].to_owned();
        let disabled = if d.int(0, 3) == 0 { vec![left_out] } else { Vec::new() };
        let buckets = BucketOptions { first_bytes: 1 << d.int(6, 14), bytes: 1 << d.int(6, 14), overlap: d.flip() };
        let fuse = d.int(0, 5) != 0;
        CompileOptions { fuse, precision, recompute, buckets, disabled, ..CompileOptions::default() }
    }

    /// Rules of no target that there is, by its seed: each thing that passes ask rules for in this way or in that.
    pub fn rules(&self) -> Rules {
        let mut d = Draw::new(self.seed ^ 1 << 41);
        Rules {
            longest_row: if d.flip() { 8 } else { Rules::DEFAULT.longest_row },
            columns: d.flip().then_some(ColumnRules { multiple: 8, least: 5 }),
            products_give_16_bits: d.flip(),
            // Of one channel, a vector of channels cannot be told from one number.
            prologue: d.flip().then_some(PrologueRules { dtype: DType::F32, least_channels: 2 }),
            biases_before_rounding: d.flip(),
            chain: d.flip().then_some(ChainRules { least_elements: 1, longest_reduction: 128 }),
            factors_of_products: d.flip(),
            alike_regions_together: d.flip(),
            sums_of_whole_tensors: d.flip(),
            limited_products: d.flip(),
            filters: if d.flip() { Filter::Ohwi } else { Filter::Hwio },
            ..Rules::DEFAULT
        }
    }

    /// Compares what the reference makes of it after each pass by these rules with what it makes of the graph as it was drawn.
    ///
    /// # Errors
    /// The first pass behind which results differ by more than roundings.
    pub fn check_passes(&self, rules: &Rules, options: &CompileOptions) -> Result<(), NetworkFailure> {
        let failure = |place: &str, problem: String| self.failure(format!("after {place}"), problem);
        let mut expected = self.drawn.expected_of(self.graph(), &Rules::DEFAULT, self.steps());
        // Before this pass state lies as it was drawn.
        let (mut state_lies_by, mut allowed) = (&Rules::DEFAULT, 1e-7);
        let mut before = String::new();
        for pass in pass_names() {
            if pass == "filters" {
                state_lies_by = rules;
            }
            let graph = run_passes(self.graph(), rules, options, Some(pass));
            let graph = graph.map_err(|error| failure(pass, error.to_string()))?;
            let text = format!("{graph:?}");
            if text == before {
                continue;
            }
            before = text;
            let actual = self.drawn.expected_of(&graph, state_lies_by, self.steps());
            if pass == "precision" && options.precision != DType::F32 {
                // Other passes move roundings.
                (expected, allowed) = (actual, 2e-2);
            } else {
                compare(&expected, &actual, 0.1, allowed).map_err(|problem| failure(pass, problem))?;
            }
        }
        Ok(())
    }

    /// Compares what an executor makes of it with what the reference does, and its results with several numbers of workers.
    ///
    /// # Errors
    /// What it refuses, or the first result that is further from the reference's than its roundings may bring it.
    pub fn check(&self, backend: &dyn Backend, options: &CompileOptions) -> Result<(), NetworkFailure> {
        let failure = |problem: String| self.failure(backend.name(), problem);
        let text = |error: GraphError| failure(error.to_string());
        let lowered = run_passes(self.graph(), backend.rules(), options, Some("precision")).map_err(text)?;
        let expected = self.drawn.expected_of(&lowered, &Rules::DEFAULT, self.steps());
        let inputs = self.drawn.inputs();
        let mut first: Option<Tensors> = None;
        for &workers in backend.workers() {
            let results = backend.run(self.graph(), options, workers, &inputs, self.steps());
            let results = results.map_err(|refusal| failure(refusal.to_string()))?;
            let dtype = |name: &String| self.graph().dtype(self.graph().find_output(name).expect("its own"));
            let actual = results.iter().map(|(name, bytes)| (name.clone(), values_of(dtype(name), bytes))).collect();
            let (least, allowed) = match (options.precision, self.functions) {
                (DType::F32, Functions::Smooth) => (0.1, 1e-3),
                (DType::F32, Functions::Any) => (0.1, 5e-2),
                _ => (0.5, 0.2),
            };
            compare(&expected, &actual, least, allowed).map_err(failure)?;
            match &first {
                Some(first) if *first != results => {
                    return Err(failure(format!("other results with {workers} workers")));
                }
                Some(_) => {}
                None => first = Some(results),
            }
        }
        Ok(())
    }

    /// Compares the gradients that are outputs with central differences of the loss, each along one direction; a network that is not
    /// smooth passes.
    ///
    /// # Errors
    /// The first gradient that differs.
    pub fn check_gradients(&self) -> Result<(), NetworkFailure> {
        if self.functions == Functions::Any {
            return Ok(());
        }
        let results = |inputs| self.drawn.with_inputs(inputs).expected();
        let gradients = results(self.drawn.inputs.clone());
        for (name, gradient) in gradients.iter().filter(|(name, _)| name.starts_with("gradient ")) {
            let number = name.trim_start_matches("gradient ");
            let direction = |i: usize| if (i * 7 + i / 3) % 5 < 2 { 1.0 } else { -0.5 };
            let loss = |step: f64| {
                let mut inputs = self.drawn.inputs.clone();
                let parameter = inputs.get_mut(&format!("x{number}")).expect("a parameter of that number");
                parameter.iter_mut().enumerate().for_each(|(i, x)| *x += step * direction(i));
                results(inputs)["loss"][0]
            };
            let step = 1e-4 / (gradient.len() as f64).sqrt();
            let expected = (loss(step) - loss(-step)) / (2.0 * step);
            let actual: f64 = gradient.iter().enumerate().map(|(i, x)| x * direction(i)).sum();
            let size = gradient.iter().enumerate().map(|(i, x)| (x * direction(i)).abs()).sum::<f64>().max(1e-2);
            let is_close = (expected - actual).abs() <= 1e-4 * size;
            if !is_close {
                let problem = format!("`{name}` along a direction is {actual}, central differences give {expected}");
                return Err(self.failure("reference".to_owned(), problem));
            }
        }
        Ok(())
    }

    fn failure(&self, place: String, problem: String) -> NetworkFailure {
        NetworkFailure { functions: self.functions, seed: self.seed, place, problem }
    }
}

/// Whether each output is no further from the expected one than a share of its norm; elements count as `least` large in that.
fn compare(expected: &Outputs, actual: &Outputs, least: f64, allowed: f64) -> Result<(), String> {
    for (name, expected) in expected {
        let actual = actual.get(name).ok_or(format!("there is no output `{name}`"))?;
        if actual.len() != expected.len() {
            return Err(format!("`{name}` has {} elements, expected {}", actual.len(), expected.len()));
        }
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let size = norm(&mut expected.iter().copied()).max(least * (expected.len() as f64).sqrt());
        let distance = norm(&mut expected.iter().zip(actual).map(|(a, b)| a - b)) / size;
        // A distance that is NaN is not close.
        let is_close = distance <= allowed;
        if !is_close {
            let error = |&i: &usize| (expected[i] - actual[i]).abs();
            let worst = (0..expected.len()).max_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0);
            return Err(format!(
                "`{name}` is {distance:.2e} of its norm from the reference, {allowed:.0e} are allowed; its element {worst} of {} is {}, \
                 expected {}",
                expected.len(),
                actual[worst],
                expected[worst]
            ));
        }
    }
    Ok(())
}
