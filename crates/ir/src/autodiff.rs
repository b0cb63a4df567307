//! Reverse-mode differentiation: adds the backward graph by the gradient rules of the operations.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Value};
use crate::ops::{GradArgs, Gradient};
use std::collections::HashMap;

/// Prefix of the path of gradient nodes; what follows is the path of the node differentiated.
pub const GRADIENT_PATH: &str = "grad";

/// Adds the gradient of `loss` with respect to each value of `wrt`.
///
/// # Errors
/// If the loss is not one `f32` number; if an operation without a gradient lies on the way, naming it and its path; if
/// the loss does not depend on some of `wrt`, naming them all.
pub fn gradients(graph: &mut Graph, loss: Value, wrt: &[Value]) -> Result<Vec<Value>, GraphError> {
    let loss_type = graph.ty(loss);
    if loss_type.dtype != DType::F32 || loss_type.shape.rank() != 0 {
        return Err(GraphError::LossType(loss_type.clone()));
    }
    let wanted = depends_on(graph, wrt);
    let mut grads: HashMap<Value, Value> = HashMap::new();
    let one = graph.at_path(GRADIENT_PATH, |g| g.constant(DType::F32, [], 1.0))?;
    grads.insert(loss, one);

    for index in (0..=loss.node.index()).rev() {
        let id = crate::graph::NodeId(index as u32);
        let node = graph.node(id).clone();
        let outputs: Vec<Value> = (0..node.outputs.len() as u32).map(|output| Value { node: id, output }).collect();
        let output_grads: Vec<Option<Value>> = outputs.iter().map(|v| grads.get(v).copied()).collect();
        let input_wanted: Vec<bool> =
            node.inputs.iter().map(|v| wanted[v.node.index()] && graph.dtype(*v).is_float()).collect();
        if output_grads.iter().all(Option::is_none) || !input_wanted.contains(&true) {
            continue;
        }
        let path = match graph.path(id) {
            "" => GRADIENT_PATH.to_string(),
            path => format!("{GRADIENT_PATH}.{path}"),
        };
        let args =
            GradArgs { node: id, inputs: &node.inputs, outputs: &outputs, grads: &output_grads, wanted: &input_wanted };
        match graph.at_path(&path, |g| node.op.rule().gradient(g, &args))? {
            Gradient::NotDifferentiable => {
                return Err(GraphError::NotDifferentiable {
                    op: node.op.to_string(),
                    path: graph.path(id).to_string(),
                    wanted: names_behind(graph, id.index(), wrt).join(", "),
                });
            }
            Gradient::Inputs(input_grads) => {
                for ((input, grad), wanted) in node.inputs.iter().zip(input_grads).zip(&input_wanted) {
                    let (Some(grad), true) = (grad, wanted) else { continue };
                    debug_assert_eq!(graph.ty(grad), graph.ty(*input), "gradient of {} has another type", node.op);
                    let sum = match grads.get(input) {
                        Some(&earlier) => graph.at_path(&path, |g| g.add(earlier, grad))?,
                        None => grad,
                    };
                    grads.insert(*input, sum);
                }
            }
        }
    }

    let missing: Vec<String> = wrt.iter().filter(|v| !grads.contains_key(v)).map(|&v| describe(graph, v)).collect();
    if !missing.is_empty() {
        return Err(GraphError::Unreached(missing));
    }
    Ok(wrt.iter().map(|v| grads[v]).collect())
}

/// For each node whether it depends on any of `sources`.
fn depends_on(graph: &Graph, sources: &[Value]) -> Vec<bool> {
    let mut depends = vec![false; graph.len()];
    for source in sources {
        depends[source.node.index()] = true;
    }
    for id in graph.ids() {
        if graph.node(id).inputs.iter().any(|v| depends[v.node.index()]) {
            depends[id.index()] = true;
        }
    }
    depends
}

fn describe(graph: &Graph, value: Value) -> String {
    let op = &graph.node(value.node).op;
    match op.as_input() {
        Some(input) => input.name.clone(),
        None => format!("{op} at `{}`", graph.path(value.node)),
    }
}

/// Names of those of `wrt` that node `index` depends on.
fn names_behind(graph: &Graph, index: usize, wrt: &[Value]) -> Vec<String> {
    wrt.iter().filter(|&&v| depends_on(graph, &[v])[index]).map(|&v| describe(graph, v)).collect()
}
