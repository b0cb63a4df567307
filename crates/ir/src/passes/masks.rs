//! Lets attention keep the mask of its dropout, a bit for each probability, for targets whose gradients read it faster than they draw it
//! again.

use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::attention::{Attention, AttentionDropout, AttentionGrad};
use crate::rules::MaskRules;
use std::collections::{HashMap, HashSet};

/// The input of a gradient before which the mask goes: that behind the log-sums.
const MASK: usize = 6;

/// # Errors
/// Only if the graph was malformed.
pub(super) fn masks(graph: &Graph, rules: &MaskRules) -> Result<Graph, GraphError> {
    let forward = |id| Some((id, forward_of(graph, rules, id)?));
    let forwards: HashMap<NodeId, NodeId> = graph.ids().filter_map(forward).collect();
    let keep: HashSet<&NodeId> = forwards.values().collect();
    let mut masks: HashMap<NodeId, Value> = HashMap::new();
    let mut rewriter = Rewriter::new(graph);
    for id in graph.ids() {
        let node = graph.node(id);
        let mut inputs: Vec<Value> = node.inputs.iter().map(|&input| rewriter.get(input)).collect();
        let op: Op = match &node.op {
            Op::Attention(attention) if keep.contains(&id) => keeping(attention).into(),
            Op::AttentionGrad(grad) if forwards.contains_key(&id) => {
                inputs.insert(MASK, masks[&forwards[&id]]);
                AttentionGrad { attention: keeping(&grad.attention) }.into()
            }
            _ => {
                rewriter.copy(id)?;
                continue;
            }
        };
        let results = rewriter.at(id, |g| g.push(op, &inputs))?;
        for (output, &result) in (0..).zip(&results).take(node.outputs.len()) {
            rewriter.set(Value { node: id, output }, result);
        }
        masks.extend(results.get(node.outputs.len()).map(|&mask| (id, mask)));
    }
    rewriter.finish()
}

fn keeping(attention: &Attention) -> Attention {
    let dropout = attention.dropout.map(|dropout| AttentionDropout { keeps_mask: true, ..dropout });
    Attention { dropout, ..*attention }
}

/// The attention whose mask a gradient may read.
fn forward_of(graph: &Graph, rules: &MaskRules, gradient: NodeId) -> Option<NodeId> {
    let node = graph.node(gradient);
    let Op::AttentionGrad(AttentionGrad { attention }) = &node.op else { return None };
    let draws = attention.dropout.is_some_and(|dropout| !dropout.keeps_mask);
    let forward = node.inputs[MASK - 1].node;
    let is_own = matches!(&graph.node(forward).op, Op::Attention(own) if own == attention);
    let types = graph.input_types(gradient);
    let depth = attention.geometry(&types[0].shape, &types[1].shape).ok()?.depth;
    let fits = types[0].dtype.size() == 2 && depth.is_multiple_of(rules.multiple) && depth <= rules.most;
    (draws && is_own && fits).then_some(forward)
}
