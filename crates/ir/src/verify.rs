//! Checks that a graph is well formed; run after every pass in builds with debug assertions, such as those of tests.

use crate::graph::{Graph, GraphError, Value};

/// Checks the order of nodes, the types that each operation infers from its inputs, outputs and updates.
///
/// # Errors
/// [`GraphError::Malformed`] with the first problem; `pass` is named in it.
pub fn verify(graph: &Graph, pass: &str) -> Result<(), GraphError> {
    let malformed = |problem: String| GraphError::Malformed { pass: pass.to_string(), problem };
    for id in graph.ids() {
        let node = graph.node(id);
        for input in &node.inputs {
            if input.node >= id {
                return Err(malformed(format!("{} at `{}` reads a later node", node.op, graph.path(id))));
            }
            if input.output as usize >= graph.node(input.node).outputs.len() {
                return Err(malformed(format!(
                    "{} at `{}` reads an output that is not there",
                    node.op,
                    graph.path(id)
                )));
            }
        }
        let types = graph.input_types(id);
        let inferred = node
            .op
            .rule()
            .infer(&types)
            .map_err(|problem| malformed(format!("{} at `{}`: {problem}", node.op, graph.path(id))))?;
        if inferred != node.outputs {
            return Err(malformed(format!("{} at `{}` has other output types than inferred", node.op, graph.path(id))));
        }
    }
    let exists = |v: Value| v.node.index() < graph.len() && (v.output as usize) < graph.node(v.node).outputs.len();
    for (name, value) in graph.outputs() {
        if !exists(*value) {
            return Err(malformed(format!("output `{name}` does not exist")));
        }
    }
    for &(state, new) in graph.updates() {
        if !exists(state) || !exists(new) {
            return Err(malformed("an update reads or replaces a value that does not exist".to_string()));
        }
        if graph.ty(state) != graph.ty(new) {
            return Err(malformed(format!("update of {} by another type", graph.node(state.node).op)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Node, NodeId, Role};
    use crate::shape::TensorType;

    /// `y = relu(x + w)` for `f32[2, 3]`, and `w` replaced by `y`; nodes 0 to 3.
    fn graph() -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::f32([2, 3])).unwrap();
        let w = g.input("w", Role::State, TensorType::f32([2, 3])).unwrap();
        let sum = g.scoped("layer", |g| g.add(x, w)).unwrap();
        let y = g.relu(sum).unwrap();
        g.output("y", y);
        g.update(w, y).unwrap();
        g
    }

    /// What is reported about the graph with one node changed.
    fn report(node: u32, change: impl FnOnce(&mut Node)) -> String {
        let mut graph = graph();
        change(graph.node_mut(NodeId(node)));
        verify(&graph, "fuse").unwrap_err().to_string()
    }

    fn value(node: u32, output: u32) -> Value {
        Value { node: NodeId(node), output }
    }

    #[test]
    fn a_graph_as_it_is_built_is_well_formed() {
        assert_eq!(verify(&graph(), "simplify"), Ok(()));
    }

    #[test]
    fn malformed_nodes_are_reported_with_the_pass_and_their_place() {
        let later = report(2, |node| node.inputs[0] = value(3, 0));
        assert_eq!(later, "malformed graph after fuse: add at `layer` reads a later node");
        let missing = report(2, |node| node.inputs[0] = value(0, 1));
        assert_eq!(missing, "malformed graph after fuse: add at `layer` reads an output that is not there");
        let operands = report(2, |node| node.inputs.truncate(1));
        assert!(operands.starts_with("malformed graph after fuse: add at `layer`: "), "{operands}");
        let ty = report(2, |node| node.outputs[0] = TensorType::f32([3, 2]));
        assert_eq!(ty, "malformed graph after fuse: add at `layer` has other output types than inferred");
    }

    #[test]
    fn results_that_do_not_exist_are_reported() {
        let mut graph = graph();
        graph.replace_output(0, value(3, 1));
        let error = verify(&graph, "fold").unwrap_err().to_string();
        assert_eq!(error, "malformed graph after fold: output `y` does not exist");
    }
}
