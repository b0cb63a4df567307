//! Runs cases on an executor and compares.

use crate::cases::{Case, Compare, Run};
use crate::problem::{Drawn, Outputs, Steps, Tensors, bytes_of, values_of};
use bessemer_ir::passes::{CompileOptions, run_passes};
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, GraphError, Op, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Random problems of each case.
const PROBLEMS: u64 = 10;

/// Numbers of workers with which results must have the same bits.
const WORKERS: [usize; 2] = [1, 3];

/// An executor under test, with one instruction set or device.
pub trait Backend {
    /// The instruction set or device that really runs, as in reports.
    fn name(&self) -> String;

    /// By which graphs are compiled for it.
    fn rules(&self) -> &Rules;

    /// Random problems of each case that it is given, at most ten: fewer where kernels are compiled slowly.
    fn problems(&self) -> u64 {
        PROBLEMS
    }

    /// Numbers of workers with which its results must have the same bits; one number where it has no choice.
    fn workers(&self) -> &[usize] {
        &WORKERS
    }

    /// Compiles a graph and runs it with the given number of workers, if the executor has that choice. Inputs are all inputs of the
    /// graph by name, as they are before the first step; the outputs of the last step are returned.
    ///
    /// # Errors
    /// Why it does not run.
    fn run(
        &self,
        graph: &Graph,
        options: &CompileOptions,
        workers: usize,
        inputs: &Tensors,
        steps: Steps,
    ) -> Result<Tensors, Refusal>;
}

/// Why an executor did not run a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no kernel for an operation.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Something that an executor states that it does not do.
#[derive(Clone, Copy)]
pub struct Limit {
    /// What it is, as in reports.
    pub what: &'static str,
    /// Whether an operation on inputs of these types is that.
    pub covers: fn(&Op, &[&TensorType]) -> bool,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("what", &self.what).finish_non_exhaustive()
    }
}

/// What became of a case on one instruction set or device, in one precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All problems, fused and op by op, agree with the reference.
    Passed {
        /// How many there were.
        problems: u64,
    },
    /// The executor states that it does not support it, and refused all of it.
    Unsupported(&'static str),
}

/// One line for each case, precision, and instruction set or device.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Case, precision, name of the backend, and what became of it.
    pub lines: Vec<(&'static str, DType, String, Outcome)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut places: BTreeMap<(usize, String), Vec<&str>> = BTreeMap::new();
        let mut order: Vec<(&str, DType)> = Vec::new();
        for (case, precision, backend, outcome) in &self.lines {
            if !order.contains(&(case, *precision)) {
                order.push((case, *precision));
            }
            let number = order.iter().position(|known| *known == (case, *precision)).unwrap_or(order.len());
            let outcome = match outcome {
                Outcome::Passed { problems } => format!("{problems} problem{}", if *problems == 1 { "" } else { "s" }),
                Outcome::Unsupported(what) => format!("not supported ({what})"),
            };
            places.entry((number, outcome)).or_default().push(backend);
        }
        for ((number, outcome), backends) in &places {
            let (case, precision) = order[*number];
            writeln!(f, "{case}, {precision}: {outcome} on {}", backends.join(", "))?;
        }
        Ok(())
    }
}

/// What is wrong with an executor, or with its list of limits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The graph of a case is not legal.
    #[error("{case}: {problem}")]
    Graph {
        /// Name of the case.
        case: &'static str,
        /// What is wrong.
        problem: GraphError,
    },
    /// It refuses what is not on its list, or fails.
    #[error("{place}: {refusal}")]
    Refused {
        /// Case, problem and backend.
        place: String,
        /// What it says.
        refusal: Refusal,
    },
    /// It runs what it states that it does not support.
    #[error("{place}: runs, although `{what}` is listed as not supported")]
    Runs {
        /// Case, problem and backend.
        place: String,
        /// What the list says.
        what: &'static str,
    },
    /// It does not return an output of the right size.
    #[error("{place}: the output `{output}` has {actual} bytes, expected {expected}")]
    Size {
        /// Case, problem and backend.
        place: String,
        /// Name of the output.
        output: String,
        /// Bytes of its type.
        expected: usize,
        /// Bytes returned; 0 where there is no such output.
        actual: usize,
    },
    /// An element is too far from the reference.
    #[error("{place}: {output}[{index}] is {actual}, the reference has {expected}")]
    Element {
        /// Case, problem and backend.
        place: String,
        /// Name of the output.
        output: String,
        /// Row-major position.
        index: usize,
        /// What the executor computed.
        actual: f64,
        /// What the reference computed.
        expected: f64,
    },
    /// The results together are too far from the reference.
    #[error("{place}: {distance:.2e} of their norm from the reference, {allowed:.2e} are allowed")]
    Norm {
        /// Case, problem and backend.
        place: String,
        /// Share of the Euclidean norm.
        distance: f64,
        /// The most that is allowed.
        allowed: f64,
    },
    /// The number of workers changes bits.
    #[error("{place}: the result depends on the number of workers")]
    Workers {
        /// Case, problem and backend.
        place: String,
    },
}

/// Runs cases on backends: each problem fused and op by op, in each precision of the case, with several numbers of workers.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(cases: &[Case], backends: &[&dyn Backend], limits: &[Limit]) -> Result<Report, Failure> {
    let mut report = Report::default();
    for case in cases {
        for run in case.runs {
            let mut outcomes: Vec<BTreeSet<Option<&'static str>>> = vec![BTreeSet::new(); backends.len()];
            for seed in 0..PROBLEMS {
                let drawn = case.draw(seed).map_err(|problem| Failure::Graph { case: case.name, problem })?;
                let (inputs, expected) = (drawn.inputs(), drawn.expected());
                for fuse in [true, false] {
                    let options = CompileOptions { fuse, precision: run.precision, ..CompileOptions::default() };
                    let given = backends.iter().zip(&mut outcomes).filter(|(backend, _)| seed < backend.problems());
                    for (backend, outcomes) in given {
                        let limit = limit_of(&drawn.graph, backend.rules(), &options, limits)
                            .map_err(|problem| Failure::Graph { case: case.name, problem })?;
                        let place = || {
                            format!("{}, problem {seed}, {}, {}, fuse {fuse}", case.name, backend.name(), run.precision)
                        };
                        let setting = Setting { backend: *backend, options: &options, place: &place };
                        setting.check(&drawn, &inputs, &expected, run, limit)?;
                        outcomes.insert(limit);
                    }
                }
            }
            for (backend, outcomes) in backends.iter().zip(outcomes) {
                for outcome in outcomes {
                    let passed = Outcome::Passed { problems: backend.problems() };
                    let outcome = outcome.map_or(passed, Outcome::Unsupported);
                    report.lines.push((case.name, run.precision, backend.name(), outcome));
                }
            }
        }
    }
    Ok(report)
}

/// What the executor does not support of a graph as it is compiled by its rules.
fn limit_of(
    graph: &Graph,
    rules: &Rules,
    options: &CompileOptions,
    limits: &[Limit],
) -> Result<Option<&'static str>, GraphError> {
    let compiled = run_passes(graph, rules, options, None)?;
    let covers =
        |limit: &&Limit| compiled.ids().any(|id| (limit.covers)(&compiled.node(id).op, &compiled.input_types(id)));
    Ok(limits.iter().find(covers).map(|limit| limit.what))
}

/// A problem on a backend.
struct Setting<'a> {
    backend: &'a dyn Backend,
    options: &'a CompileOptions,
    place: &'a dyn Fn() -> String,
}

impl Setting<'_> {
    fn check(
        &self,
        drawn: &Drawn,
        inputs: &Tensors,
        expected: &Outputs,
        run: &Run,
        limit: Option<&'static str>,
    ) -> Result<(), Failure> {
        let mut first: Option<Tensors> = None;
        for &workers in self.backend.workers() {
            let results = match (self.backend.run(&drawn.graph, self.options, workers, inputs, Steps::ONE), limit) {
                (Err(Refusal::Unsupported(_)), Some(_)) => return Ok(()),
                (Ok(_), Some(what)) => return Err(Failure::Runs { place: (self.place)(), what }),
                (Err(refusal), _) => return Err(Failure::Refused { place: (self.place)(), refusal }),
                (Ok(results), None) => results,
            };
            match &first {
                None => {
                    self.compare(&drawn.graph, expected, &results, run.compare)?;
                    first = Some(results);
                }
                Some(first) if *first != results => return Err(Failure::Workers { place: (self.place)() }),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn compare(&self, graph: &Graph, expected: &Outputs, results: &Tensors, compare: Compare) -> Result<(), Failure> {
        let (mut norm, mut distance) = (0.0, 0.0);
        for (output, value) in graph.outputs() {
            let (ty, bytes) = (graph.ty(*value), results.get(output).map_or(&[][..], Vec::as_slice));
            if bytes.len() != ty.bytes() {
                let (expected, actual) = (ty.bytes(), bytes.len());
                return Err(Failure::Size { place: (self.place)(), output: output.clone(), expected, actual });
            }
            let (expected, actual) = (&expected[output], values_of(ty.dtype, bytes));
            let rounded = values_of(ty.dtype, &bytes_of(ty.dtype, expected));
            let largest = expected.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
            for index in 0..expected.len() {
                let error = (expected[index] - actual[index]).abs();
                norm += expected[index].powi(2);
                distance += error.powi(2);
                let is_close = match compare {
                    Compare::Exact => actual[index] == rounded[index],
                    Compare::Elements(share) => error <= share * largest,
                    Compare::Norm(_) | Compare::NormBehindRelu(_) => true,
                };
                if !is_close {
                    let (actual, expected) = (actual[index], expected[index]);
                    return Err(Failure::Element {
                        place: (self.place)(),
                        output: output.clone(),
                        index,
                        actual,
                        expected,
                    });
                }
            }
        }
        let allowed = match compare {
            Compare::Exact | Compare::Elements(_) => return Ok(()),
            Compare::Norm(share) => share,
            Compare::NormBehindRelu(share) => 1.5 * share.sqrt(),
        };
        let distance = (distance / f64::max(norm, 1e-12)).sqrt();
        // A distance that is NaN fails this comparison, too.
        if distance <= allowed { Ok(()) } else { Err(Failure::Norm { place: (self.place)(), distance, allowed }) }
    }
}

/// Names of the operations, as variants of [`Op`], that cases reach: as they are built, with gradients, and as passes rewrite them.
///
/// # Errors
/// When a case is not legal.
pub fn reached(cases: &[Case]) -> Result<BTreeSet<&'static str>, GraphError> {
    let mut reached = BTreeSet::new();
    for (case, seed) in cases.iter().flat_map(|case| (0..PROBLEMS).map(move |seed| (case, seed))) {
        let drawn = case.draw(seed)?;
        let compiled = run_passes(&drawn.graph, &Rules::DEFAULT, &CompileOptions::default(), None)?;
        for node in drawn.graph.nodes().iter().chain(compiled.nodes()) {
            reached.insert(node.op.variant());
        }
    }
    Ok(reached)
}
