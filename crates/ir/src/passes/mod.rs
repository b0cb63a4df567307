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
use fuse::FuseOptions;
use invariant::Invariant;
use recompute::Recompute;

/// One way to rewrite a graph; nothing where the graph stays as it is.
type Rewrite = fn(&Graph, &Rules, &CompileOptions) -> Option<Result<Graph, GraphError>>;

/// A pass of the compiler.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    name: &'static str,
    run: Rewrite,
    /// What runs in its place where it is left out; nothing for a pass that graphs do not compile without.
    left_out: Option<Rewrite>,
}

/// For [`Pass::left_out`]: nothing runs.
const SKIPPED: Option<Rewrite> = Some(|_, _, _| None);

/// The passes, in the order in which they run.
pub const PASSES: [Pass; 14] = [
    Pass { name: "simplify", run: |graph, _, _| Some(simplify::simplify(graph)), left_out: SKIPPED },
    Pass { name: "fold", run: |graph, _, options| options.fuse.then(|| fold::fold(graph)), left_out: SKIPPED },
    Pass {
        name: "precision",
        run: |graph, rules, options| {
            let is_lower = options.precision != DType::F32;
            is_lower.then(|| precision::lower_precision(graph, rules, options.precision))
        },
        left_out: None,
    },
    Pass {
        name: "widen",
        run: |graph, rules, options| {
            let columns = rules.columns.as_ref().filter(|_| options.fuse)?;
            Some(widen::widen(graph, columns))
        },
        left_out: SKIPPED,
    },
    // Targets that take whole batches have no kernels for less.
    Pass {
        name: "limits",
        run: |graph, rules, _| (!rules.limited_products).then(|| limits::limits(graph)),
        left_out: None,
    },
    Pass {
        name: "recompute",
        run: |graph, _, options| {
            let is_asked_for = options.recompute != Recompute::None;
            is_asked_for.then(|| recompute::recompute(graph, options.recompute))
        },
        left_out: SKIPPED,
    },
    Pass {
        name: "masks",
        run: |graph, rules, _| Some(masks::masks(graph, rules.kept_masks.as_ref()?)),
        left_out: SKIPPED,
    },
    // State lies as the target has it, whatever a step does.
    Pass { name: "filters", run: |graph, rules, _| Some(filters::filters(graph, rules)), left_out: None },
    Pass {
        name: "prologue",
        run: |graph, rules, options| {
            let prologue = rules.prologue.as_ref().filter(|_| options.fuse)?;
            Some(prologue::prologue(graph, prologue))
        },
        left_out: SKIPPED,
    },
    Pass {
        name: "chain",
        run: |graph, rules, options| {
            let chain = rules.chain.as_ref().filter(|_| options.fuse)?;
            Some(chain::chain(graph, chain))
        },
        left_out: SKIPPED,
    },
    // Pointwise operations have no kernel outside fusions: without the pass each is one by itself.
    Pass {
        name: "fuse",
        run: |graph, rules, options| Some(fuse::fuse(graph, rules, FuseOptions { fuse: options.fuse })),
        left_out: Some(|graph, rules, _| Some(fuse::fuse(graph, rules, FuseOptions { fuse: false }))),
    },
    Pass {
        name: "factors",
        run: |graph, rules, options| (options.fuse && rules.factors_of_products).then(|| factors::factors(graph)),
        left_out: SKIPPED,
    },
    Pass { name: "buckets", run: |graph, _, options| Some(buckets::buckets(graph, options.buckets)), left_out: None },
    Pass { name: "schedule", run: |graph, rules, _| Some(schedule::schedule(graph, rules)), left_out: SKIPPED },
];

impl Pass {
    /// The name by which users know it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether graphs compile without it. Optional passes are left out one by one to find the one that is to blame for a wrong result.
    pub fn is_optional(&self) -> bool {
        self.left_out.is_some()
    }

    fn run(&self, graph: Graph, rules: &Rules, options: &CompileOptions) -> Result<Graph, GraphError> {
        let is_left_out = options.disabled.iter().any(|name| name == self.name);
        let rewrite = self.left_out.filter(|_| is_left_out).unwrap_or(self.run);
        rewrite(&graph, rules, options).unwrap_or(Ok(graph))
    }
}

/// Names of the passes, in the order in which they run.
pub fn pass_names() -> impl Iterator<Item = &'static str> + Clone {
    PASSES.iter().map(Pass::name)
}

/// Names of the passes that graphs compile without, in the order in which they run.
pub fn optional_pass_names() -> impl Iterator<Item = &'static str> + Clone {
    PASSES.iter().filter(|pass| pass.is_optional()).map(Pass::name)
}

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
    /// Names of passes left out, of [`optional_pass_names`].
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
    in_order(graph, last, |pass, graph| pass.run(graph, rules, options))
}

/// Applies the passes up to and including `last`; in builds with debug assertions each one's graph is verified.
fn in_order(
    graph: &Graph,
    last: Option<&str>,
    apply: impl Fn(&Pass, Graph) -> Result<Graph, GraphError>,
) -> Result<Graph, GraphError> {
    let mut current = graph.clone();
    for pass in &PASSES {
        current = apply(pass, current)?;
        if cfg!(debug_assertions) {
            verify(&current, pass.name)?;
        }
        if last == Some(pass.name) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::shape::TensorType;

    #[test]
    fn passes_that_targets_rely_on_cannot_be_left_out() {
        let required: Vec<&str> = PASSES.iter().filter(|pass| !pass.is_optional()).map(Pass::name).collect();
        assert_eq!(required, ["precision", "limits", "filters", "buckets"]);
        assert_eq!(optional_pass_names().count() + required.len(), PASSES.len());
    }

    #[test]
    fn without_fuse_each_operation_is_a_fusion() {
        let mut graph = Graph::new();
        let x = graph.input("x", Role::Feed, TensorType::f32([2])).unwrap();
        let y = graph.relu(x).unwrap();
        let z = graph.rsqrt(y).unwrap();
        graph.output("z", z);
        let operations = |disabled: &[&str]| {
            let disabled = disabled.iter().map(|name| name.to_string()).collect();
            let options = CompileOptions { disabled, ..CompileOptions::default() };
            let passed = run_passes(&graph, &Rules::DEFAULT, &options, None).unwrap();
            passed.nodes().iter().map(|node| node.op.rule().name()).collect::<Vec<_>>()
        };
        assert_eq!(operations(&[]), ["feed", "fusion"]);
        assert_eq!(operations(&["fuse"]), ["feed", "fusion", "fusion"]);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_malformed_graph_is_reported_with_the_pass_that_made_it() {
        use crate::graph::NodeId;
        let mut graph = Graph::new();
        let x = graph.input("x", Role::Feed, TensorType::f32([2])).unwrap();
        let y = graph.relu(x).unwrap();
        graph.output("y", y);
        assert!(in_order(&graph, None, |_, graph| Ok(graph)).is_ok());
        for broken in pass_names() {
            let result = in_order(&graph, None, |pass, mut graph| {
                if pass.name == broken {
                    graph.node_mut(NodeId(1)).outputs[0] = TensorType::f32([3]);
                }
                Ok(graph)
            });
            let expected = format!("malformed graph after {broken}: relu at `` has other output types than inferred");
            assert_eq!(result.unwrap_err().to_string(), expected);
        }
    }
}
