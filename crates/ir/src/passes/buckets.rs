//! Packs sums over ranks into few messages that travel while kernels compute.

use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::collective::{AllReduce, AllReduceStart, AllReduceWait};
use std::collections::BTreeMap;

/// How tensors are packed into messages. None of it changes results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketOptions {
    /// Bytes of the first message, that of the gradients which are there first.
    pub first_bytes: usize,
    /// Bytes of each further one.
    pub bytes: usize,
    /// Whether messages travel while the rest of the step is computed.
    pub overlap: bool,
}

impl Default for BucketOptions {
    fn default() -> Self {
        BucketOptions { first_bytes: 1 << 20, bytes: 8 << 20, overlap: true }
    }
}

/// Replaces the [`AllReduce`] nodes by one for each bucket: those that are ready one after the other, until a bucket is full. With
/// `overlap` a bucket is a start and a wait, which the schedule moves apart.
///
/// # Errors
/// Only if the graph was malformed.
pub fn buckets(graph: &Graph, options: BucketOptions) -> Result<Graph, GraphError> {
    let buckets = group(graph, options);
    if buckets.is_empty() {
        return Ok(graph.clone());
    }
    let bucket_of: BTreeMap<NodeId, usize> =
        buckets.iter().enumerate().flat_map(|(number, bucket)| bucket.iter().map(move |&id| (id, number))).collect();
    let mut writer =
        Writer { graph, rewriter: Rewriter::new(graph), written: vec![false; graph.len()], buckets, bucket_of };
    for id in graph.ids().filter(|id| !matches!(graph.node(*id).op, Op::AllReduce(_))) {
        writer.write(id, options.overlap)?;
    }
    for bucket in 0..writer.buckets.len() {
        writer.write(writer.buckets[bucket][0], options.overlap)?;
    }
    writer.rewriter.finish()
}

/// Sums that may share a bucket.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// How many sums lie before it one behind the other; `None` where nothing but results and state is computed from it.
    awaited_behind: Option<usize>,
    op: AllReduce,
}

/// The nodes of each bucket, in the order in which their operands are computed. Sums that other sums are computed from, and those of
/// every micro-batch, share a bucket only with those behind as many sums as they: something waits for them. All others, gradients
/// among them, travel with whatever is ready at the same time.
fn group(graph: &Graph, options: BucketOptions) -> Vec<Vec<NodeId>> {
    let is_sum = |id: &NodeId| matches!(graph.node(*id).op, Op::AllReduce(_));
    let operands = graph.ids().filter(is_sum).flat_map(|id| &graph.node(id).inputs).map(|input| input.node);
    let (before_sums, of_micro_batches) = (graph.ancestors(operands), graph.accumulation_phase());
    let mut sums_before = vec![0_usize; graph.len()];
    let mut kinds: BTreeMap<Kind, Vec<(NodeId, NodeId)>> = BTreeMap::new();
    for id in graph.ids() {
        let node = graph.node(id);
        let before = node.inputs.iter().map(|input| sums_before[input.node.index()]).max().unwrap_or(0);
        sums_before[id.index()] = before + usize::from(is_sum(&id));
        if let Op::AllReduce(op) = &node.op {
            let ready = node.inputs.iter().map(|input| input.node).max().expect("it has an input");
            let is_awaited = before_sums[id.index()] || of_micro_batches[id.index()];
            kinds.entry(Kind { awaited_behind: is_awaited.then_some(before), op: *op }).or_default().push((ready, id));
        }
    }
    let mut buckets: Vec<Vec<NodeId>> = Vec::new();
    for mut nodes in kinds.into_values() {
        nodes.sort_unstable();
        let (mut room, mut is_open) = (0, false);
        for (_, id) in nodes {
            let bytes: usize = graph.input_types(id).iter().map(|ty| ty.bytes()).sum();
            if !is_open || bytes > room {
                room = if buckets.is_empty() { options.first_bytes } else { options.bytes };
                buckets.push(Vec::new());
                is_open = true;
            }
            room = room.saturating_sub(bytes);
            buckets.last_mut().expect("one was opened").push(id);
        }
    }
    buckets
}

struct Writer<'a> {
    graph: &'a Graph,
    rewriter: Rewriter<'a>,
    written: Vec<bool>,
    buckets: Vec<Vec<NodeId>>,
    bucket_of: BTreeMap<NodeId, usize>,
}

impl Writer<'_> {
    /// Writes a node behind what it is computed from: for a sum, all of its bucket.
    fn write(&mut self, wanted: NodeId, overlap: bool) -> Result<(), GraphError> {
        let mut stack = vec![wanted];
        while let Some(&id) = stack.last() {
            let members = match self.bucket_of.get(&id) {
                Some(&number) => self.buckets[number].clone(),
                None => vec![id],
            };
            let inputs = members.iter().flat_map(|&member| &self.graph.node(member).inputs);
            let missing: Vec<NodeId> =
                inputs.map(|input| input.node).filter(|node| !self.written[node.index()]).collect();
            if self.written[id.index()] {
                stack.pop();
            } else if missing.is_empty() {
                match &self.graph.node(id).op {
                    Op::AllReduce(op) => self.write_bucket(*op, &members, overlap)?,
                    _ => self.rewriter.copy(id)?,
                }
                members.iter().for_each(|member| self.written[member.index()] = true);
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
        Ok(())
    }

    fn write_bucket(&mut self, op: AllReduce, members: &[NodeId], overlap: bool) -> Result<(), GraphError> {
        let graph = self.graph;
        let inputs: Vec<Value> = members.iter().flat_map(|&member| &graph.node(member).inputs).copied().collect();
        let types = inputs.iter().map(|&input| graph.ty(input).clone()).collect();
        let inputs: Vec<Value> = inputs.into_iter().map(|input| self.rewriter.get(input)).collect();
        let outputs = self.rewriter.target().at_path(graph.path(members[0]), |g| match overlap {
            true => {
                let number = g.push1(AllReduceStart { op }, &inputs)?;
                g.push(AllReduceWait { types }, &[number])
            }
            false => g.push(op, &inputs),
        })?;
        let mut outputs = outputs.into_iter();
        for &member in members {
            for (output, new) in outputs.by_ref().take(graph.node(member).outputs.len()).enumerate() {
                self.rewriter.set(Value { node: member, output: output as u32 }, new);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::reference::{Interpreter, run_ranks};
    use crate::rules::Rules;
    use crate::shape::TensorType;

    const SUM: AllReduce = AllReduce { ranks: 2, wire: crate::ops::collective::Wire::F32 };

    /// Three tensors of 4 elements, each summed over the ranks, and a fourth sum that depends on the first.
    fn graph() -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::f32([4])).unwrap();
        let parts: Vec<Value> = (1..=3).map(|factor| g.mul_scalar(x, f64::from(factor)).unwrap()).collect();
        let sums: Vec<Value> = parts.iter().map(|&part| g.push1(SUM, &[part]).unwrap()).collect();
        for (number, &sum) in sums.iter().enumerate() {
            g.output(&format!("sum{number}"), sum);
        }
        let square = g.square(sums[0]).unwrap();
        let late = g.push1(SUM, &[square]).unwrap();
        g.output("late", late);
        g
    }

    fn sizes(graph: &Graph) -> Vec<usize> {
        let count = |id| match graph.node(id).op {
            Op::AllReduce(_) | Op::AllReduceStart(_) => Some(graph.node(id).inputs.len()),
            _ => None,
        };
        graph.ids().filter_map(count).collect()
    }

    #[test]
    fn buckets_are_filled_in_order() {
        let options = |first_bytes, bytes| BucketOptions { first_bytes, bytes, overlap: true };
        for (options, expected) in [
            (options(1000, 1000), vec![1, 3]),
            (options(16, 32), vec![1, 1, 2]),
            (options(0, 0), vec![1, 1, 1, 1]),
            (options(32, 16), vec![1, 2, 1]),
        ] {
            assert_eq!(sizes(&buckets(&graph(), options).unwrap()), expected, "{options:?}");
        }
    }

    #[test]
    fn results_stay() {
        let results = |graph: &Graph| {
            let mut ranks = [Interpreter::new(graph), Interpreter::new(graph)];
            for (number, rank) in ranks.iter_mut().enumerate() {
                rank.set("x", &[1.0, 2.0, 3.0, 4.0 + number as f64]);
            }
            run_ranks(&mut ranks);
            let of =
                |rank: &Interpreter<'_>| ["sum0", "sum1", "sum2", "late"].map(|name| rank.output(name).data.clone());
            assert_eq!(of(&ranks[0]), of(&ranks[1]));
            of(&ranks[0])
        };
        let graph = graph();
        let expected = results(&graph);
        assert_eq!(expected[1], [4.0, 8.0, 12.0, 18.0]);
        assert_eq!(expected[3][3], 2.0 * 81.0);
        for overlap in [false, true] {
            for bytes in [0, 16, 32, 1000] {
                let options = BucketOptions { first_bytes: bytes, bytes, overlap };
                let packed = buckets(&graph, options).unwrap();
                assert_eq!(results(&packed), expected, "{options:?}");
                let scheduled = crate::passes::schedule::schedule(&packed, &Rules::DEFAULT).unwrap();
                assert_eq!(results(&scheduled), expected, "{options:?}");
            }
        }
    }
}
