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
    use crate::dtype::DType;
    use crate::graph::{Node, NodeId, Role};
    use crate::ops::Op;
    use crate::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr};
    use crate::shape::{Shape, TensorType};

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

    /// A fusion of the domain `[4, 3]` with an output of each kind.
    fn fusion() -> Fusion {
        let shape = Shape::from([3]);
        Fusion {
            producer: None,
            rows: 4,
            cols: 3,
            loads: vec![IndexMap { row_div: 2, row_mod: 2, by_col: false }],
            program: vec![Instr::Load(0)],
            outputs: vec![
                FusionOutput::Store { reg: 0, ty: TensorType::f32([2, 2, 3]) },
                FusionOutput::Rows { reg: 0, ty: TensorType::f32([2, 2]) },
                FusionOutput::Sum { reg: 0, groups: 2, shape: Shape::from([2, 3]) },
                FusionOutput::MeanVar { reg: 0, shape },
            ],
        }
    }

    /// What is reported about a graph with that fusion changed; nothing where it is well formed.
    fn report_of_fusion(change: impl FnOnce(&mut Fusion)) -> Option<String> {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::f32([2])).unwrap();
        let y = g.scoped("norm", |g| g.push(fusion(), &[x])).unwrap()[0];
        let node = g.node_mut(y.node);
        let Op::Fusion(fusion) = &mut node.op else { unreachable!("it was added as one") };
        change(fusion);
        node.outputs = fusion.outputs.iter().flat_map(FusionOutput::types).collect();
        let report = verify(&g, "fuse").err()?.to_string();
        let (place, problem) = report.split_once(" at `norm`: ").expect("the path of the node");
        assert!(place.starts_with("malformed graph after fuse: fusion("), "{place}");
        Some(problem.to_string())
    }

    #[test]
    fn outputs_of_fusions_have_the_elements_that_kernels_write() {
        assert_eq!(report_of_fusion(|_| {}), None);
        let report = |index: usize, output: FusionOutput| report_of_fusion(|f| f.outputs[index] = output).unwrap();
        let store = FusionOutput::Store { reg: 0, ty: TensorType::new(DType::Bf16, [3, 3]) };
        assert_eq!(report(0, store), "output 0 of [4, 3] is an element for each position, 12 in all, not bf16[3, 3]");
        let rows = FusionOutput::Rows { reg: 0, ty: TensorType::f32([3]) };
        assert_eq!(report(1, rows), "output 1 of [4, 3] is an element for each row, 4 in all, not f32[3]");
        let sum = |groups| FusionOutput::Sum { reg: 0, groups, shape: Shape::from([2, 3]) };
        assert_eq!(report(2, sum(1)), "output 2 of [4, 3] is sums of runs of rows by column, 3 in all, not f32[2, 3]");
        let moments = FusionOutput::MeanVar { reg: 0, shape: Shape::from([4]) };
        assert_eq!(report(3, moments), "output 3 of [4, 3] is moments of all rows by column, 3 in all, not f32[4]");
    }

    #[test]
    fn fusions_sum_equal_parts_of_the_rows() {
        for groups in [0, 3] {
            let sum = FusionOutput::Sum { reg: 0, groups, shape: Shape::from([groups, 3]) };
            let report = report_of_fusion(|f| f.outputs[2] = sum);
            let expected = format!("output 2 sums {groups} runs of rows, which must be equal parts of the 4 rows");
            assert_eq!(report, Some(expected));
        }
    }

    #[test]
    fn fusions_read_inputs_by_rows_that_are_there() {
        let report = |index_map: IndexMap| report_of_fusion(|f| f.loads[0] = index_map).unwrap();
        for index_map in
            [IndexMap { row_div: 0, row_mod: 2, by_col: false }, IndexMap { row_div: 1, row_mod: 0, by_col: false }]
        {
            let expected =
                format!("input 0 of the program is read by {index_map:?}, row_div and row_mod must be 1 or more");
            assert_eq!(report(index_map), expected);
        }
    }

    #[test]
    fn fusions_without_elements_are_well_formed() {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::f32([0, 3])).unwrap();
        let outputs = vec![
            FusionOutput::Store { reg: 0, ty: TensorType::f32([0, 3]) },
            FusionOutput::Sum { reg: 0, groups: 0, shape: Shape::from([0, 3]) },
        ];
        let loads = vec![IndexMap::full(0)];
        g.push(Fusion { producer: None, rows: 0, cols: 3, loads, program: vec![Instr::Load(0)], outputs }, &[x])
            .unwrap();
        assert_eq!(verify(&g, "fuse"), Ok(()));
    }

    #[test]
    fn programs_read_no_producer_where_there_is_none() {
        let report = report_of_fusion(|f| f.program.push(Instr::Producer));
        assert_eq!(report.as_deref(), Some("instruction 1 reads a producer, the fusion has none"));
    }

    #[test]
    fn results_that_do_not_exist_are_reported() {
        let mut graph = graph();
        graph.replace_output(0, value(3, 1));
        let error = verify(&graph, "fold").unwrap_err().to_string();
        assert_eq!(error, "malformed graph after fold: output `y` does not exist");
    }
}
