//! Rewrites of graphs, one file each, and the order in which they run.

pub mod alike;
pub mod buckets;
pub mod chain;
mod channels;
pub mod factors;
mod filters;
pub mod fold;
pub mod fuse;
pub mod invariant;
mod limits;
mod masks;
pub mod memory;
pub mod precision;
pub mod prologue;
pub mod recompute;
pub mod schedule;
pub mod simplify;
pub mod widen;

use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::plan::{Kernels, Plan, Target};
use crate::rules::Rules;
use crate::verify::verify;
use buckets::BucketOptions;
use invariant::Invariant;
use recompute::Recompute;

/// Names of the passes, in the order in which they run.
pub const PASSES: [&str; 14] = [
    "simplify",
    "fold",
    "precision",
    "widen",
    "limits",
    "recompute",
    "masks",
    "filters",
    "prologue",
    "chain",
    "fuse",
    "factors",
    "buckets",
    "schedule",
];

/// Passes that a graph compiles without, one by one, to find the one that is to blame for a wrong result. Where "fuse" is left out each operation
/// is a fusion by itself.
pub const OPTIONAL_PASSES: [&str; 10] =
    ["simplify", "fold", "widen", "recompute", "masks", "prologue", "chain", "fuse", "factors", "schedule"];

/// Which passes run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// `false` runs the graph op by op.
    pub fuse: bool,
    /// Type in which tensors are stored and products read them: `f32`, or one of 16 bits.
    pub precision: DType,
    /// Whether products of `f32` operands may round these to TF32 (10 bits of fraction), where the target can; they are stored as `f32`.
    pub tf32: bool,
    /// What is computed a second time instead of being kept for the backward pass.
    pub recompute: Recompute,
    /// How sums over ranks are packed into messages.
    pub buckets: BucketOptions,
    /// Names of passes left out, of [`OPTIONAL_PASSES`].
    pub disabled: Vec<String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            fuse: true,
            precision: DType::F32,
            tf32: false,
            recompute: Recompute::None,
            buckets: BucketOptions::default(),
            disabled: Vec::new(),
        }
    }
}

/// The graph after the passes up to and including `last`, or after all of them, by the rules of a target.
///
/// # Errors
/// [`GraphError`] if the graph is malformed.
pub fn run_passes(
    graph: &Graph,
    rules: &Rules,
    options: &CompileOptions,
    last: Option<&str>,
) -> Result<Graph, GraphError> {
    in_order(graph, last, |pass, graph| {
        // Pointwise operations have no kernel outside fusions, so that the pass cannot be left out, only its fusing.
        let enabled = !options.disabled.iter().any(|d| d == pass);
        match pass {
            "simplify" if enabled => simplify::simplify(&graph),
            "fold" if enabled && options.fuse => fold::fold(&graph),
            "precision" if enabled && options.precision != DType::F32 => {
                precision::lower_precision(&graph, rules, options.precision)
            }
            "widen" if enabled && options.fuse => match &rules.columns {
                Some(rules) => widen::widen(&graph, rules),
                None => Ok(graph),
            },
            // Targets that take whole batches have no kernels for less.
            "limits" if !rules.limited_products => limits::limits(&graph),
            "recompute" if enabled && options.recompute != Recompute::None => {
                recompute::recompute(&graph, options.recompute)
            }
            "masks" if enabled => match &rules.kept_masks {
                Some(rules) => masks::masks(&graph, rules),
                None => Ok(graph),
            },
            // State lies as the target has it, whatever a step does.
            "filters" => filters::filters(&graph, rules),
            "prologue" if enabled && options.fuse => match &rules.prologue {
                Some(rules) => prologue::prologue(&graph, rules),
                None => Ok(graph),
            },
            "chain" if enabled && options.fuse => match &rules.chain {
                Some(rules) => chain::chain(&graph, rules),
                None => Ok(graph),
            },
            "fuse" => fuse::fuse(&graph, rules, fuse::FuseOptions { fuse: options.fuse && enabled }),
            "factors" if enabled && options.fuse && rules.factors_of_products => factors::factors(&graph),
            "buckets" if enabled => buckets::buckets(&graph, options.buckets),
            "schedule" if enabled => schedule::schedule(&graph, rules),
            _ => Ok(graph),
        }
    })
}

/// Applies the passes up to and including `last`; in builds with debug assertions each one's graph is verified.
fn in_order(
    graph: &Graph,
    last: Option<&str>,
    apply: impl Fn(&str, Graph) -> Result<Graph, GraphError>,
) -> Result<Graph, GraphError> {
    let mut current = graph.clone();
    for pass in PASSES {
        current = apply(pass, current)?;
        if cfg!(debug_assertions) {
            verify(&current, pass)?;
        }
        if last == Some(pass) {
            break;
        }
    }
    Ok(current)
}

/// Compiles a graph to a plan for a target.
///
/// # Errors
/// [`GraphError`] if the graph is malformed, or the target has no kernels for some of its operations.
pub fn compile(graph: &Graph, target: &dyn Target, options: &CompileOptions) -> Result<Plan, GraphError> {
    let graph = run_passes(graph, target.rules(), options, None)?;
    let invariant = Invariant::of(&graph);
    let kernels = Kernels::choose(&graph, target, &invariant).map_err(GraphError::Unsupported)?;
    Ok(Plan { tf32: options.tf32, ..memory::plan_memory(&graph, target.rules(), invariant, kernels) })
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::graph::{NodeId, Role};
    use crate::shape::TensorType;

    #[test]
    fn a_malformed_graph_is_reported_with_the_pass_that_made_it() {
        let mut graph = Graph::new();
        let x = graph.input("x", Role::Feed, TensorType::f32([2])).unwrap();
        let y = graph.relu(x).unwrap();
        graph.output("y", y);
        assert!(in_order(&graph, None, |_, graph| Ok(graph)).is_ok());
        for broken in PASSES {
            let result = in_order(&graph, None, |pass, mut graph| {
                if pass == broken {
                    graph.node_mut(NodeId(1)).outputs[0] = TensorType::f32([3]);
                }
                Ok(graph)
            });
            let expected = format!("malformed graph after {broken}: relu at `` has other output types than inferred");
            assert_eq!(result.unwrap_err().to_string(), expected);
        }
    }
}
