//! The graph of objects that a checkpoint of TensorFlow 2 was saved from: which of its tensors are a model's, and what they are called.

use super::proto::{TrackableObject, TrackableObjectGraph};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the tensor of a variable is called among those of an object.
const VARIABLE: &str = "VARIABLE_VALUE";
/// What stands behind the path of an object in the key of its variable.
const KEY_SUFFIX: &str = "/.ATTRIBUTES/VARIABLE_VALUE";
/// Edges that lead to what training keeps beside a model. Models are saved with copies of their description under `keras_api`.
const NOT_OF_MODEL: [&str; 6] = ["optimizer", "_optimizer", "save_counter", "metrics", "keras_metrics", "keras_api"];
/// What optimizers call the average of a variable.
const AVERAGE: &str = "average";

/// A variable of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelVariable {
    /// The key of its tensor.
    pub key: String,
    /// That of its average.
    pub average: Option<String>,
    /// Its name, or the path of its object if it has none or shares it with others.
    pub name: String,
}

/// The variables that the root reaches without what an optimizer keeps.
///
/// # Errors
/// A reference to an object that is not there, in words.
pub(super) fn model_variables(graph: &TrackableObjectGraph) -> Result<Vec<ModelVariable>, String> {
    let nodes = &graph.nodes;
    let node = |id: i32| {
        let index = usize::try_from(id).ok().filter(|&index| index < nodes.len());
        index.ok_or_else(|| format!("its graph leads to object {id}, and has {}", nodes.len()))
    };
    let (mut slots, mut averages) = (BTreeSet::new(), BTreeMap::new());
    for slot in nodes.iter().flat_map(|node| &node.slot_variables) {
        let variable = node(slot.slot_variable_node_id)?;
        slots.insert(variable);
        if slot.slot_name == AVERAGE {
            averages.insert(node(slot.original_variable_node_id)?, variable);
        }
    }
    let (mut seen, mut waiting) = (BTreeSet::from([0]), VecDeque::from([0]));
    let mut found = Vec::new();
    while let Some(index) = waiting.pop_front() {
        let Some(object) = nodes.get(index) else { break };
        if slots.contains(&index) || !object.slot_variables.is_empty() {
            continue;
        }
        if let Some((key, name)) = variable(object) {
            let average = averages.get(&index).and_then(|&average| variable(&nodes[average]));
            found.push((key, average.map(|(key, _)| key), name));
        }
        for child in &object.children {
            let index = node(child.node_id)?;
            if !NOT_OF_MODEL.contains(&child.local_name.as_str()) && seen.insert(index) {
                waiting.push_back(index);
            }
        }
    }
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, _, name) in &found {
        *uses.entry(name).or_default() += 1;
    }
    let named = found.iter().map(|&(key, average, name)| ModelVariable {
        key: key.to_owned(),
        average: average.map(str::to_owned),
        name: match name {
            "" => path(key),
            name if uses[name] > 1 => path(key),
            name => name.to_owned(),
        },
    });
    Ok(named.collect())
}

/// Key and name of the variable that an object is.
fn variable(object: &TrackableObject) -> Option<(&str, &str)> {
    let attribute = object.attributes.iter().find(|attribute| attribute.name == VARIABLE)?;
    Some((&attribute.checkpoint_key, &attribute.full_name))
}

fn path(key: &str) -> String {
    key.strip_suffix(KEY_SUFFIX).unwrap_or(key).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow_file::proto::{ObjectReference, SerializedTensor, SlotVariableReference};

    fn object(key: Option<(&str, &str)>, children: &[(i32, &str)]) -> TrackableObject {
        let attribute = |(key, name): (&str, &str)| SerializedTensor {
            name: VARIABLE.to_owned(),
            full_name: name.to_owned(),
            checkpoint_key: format!("{key}{KEY_SUFFIX}"),
        };
        let child = |&(node_id, name): &(i32, &str)| ObjectReference { node_id, local_name: name.to_owned() };
        TrackableObject {
            children: children.iter().map(child).collect(),
            attributes: key.into_iter().map(attribute).collect(),
            slot_variables: Vec::new(),
        }
    }

    #[test]
    fn cycles_end_and_names_that_are_shared_become_paths() {
        let nodes = vec![
            object(None, &[(1, "a"), (2, "b"), (3, "c"), (4, "save_counter"), (0, "self")]),
            object(Some(("a", "kernel")), &[(0, "parent")]),
            object(Some(("b", "kernel")), &[]),
            object(Some(("c", "")), &[]),
            object(Some(("save_counter", "save_counter")), &[]),
        ];
        let found = model_variables(&TrackableObjectGraph { nodes }).unwrap();
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(found[0].key, "a/.ATTRIBUTES/VARIABLE_VALUE");
    }

    #[test]
    fn what_an_optimizer_keeps_is_left_out() {
        let mut optimizer = object(None, &[(4, "learning_rate")]);
        let slot = |variable, name: &str| SlotVariableReference {
            original_variable_node_id: 1,
            slot_name: name.to_owned(),
            slot_variable_node_id: variable,
        };
        optimizer.slot_variables = vec![slot(3, "momentum"), slot(5, AVERAGE)];
        let nodes = vec![
            object(None, &[(1, "weight"), (2, "training"), (3, "momentum"), (5, "average")]),
            object(Some(("weight", "dense/kernel")), &[]),
            optimizer,
            object(Some(("m", "dense/kernel/momentum")), &[]),
            object(Some(("rate", "learning_rate")), &[]),
            object(Some(("mean", "dense/kernel/average")), &[]),
        ];
        let found = model_variables(&TrackableObjectGraph { nodes }).unwrap();
        let expected = ModelVariable {
            key: format!("weight{KEY_SUFFIX}"),
            average: Some(format!("mean{KEY_SUFFIX}")),
            name: "dense/kernel".to_owned(),
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn edges_lead_somewhere() {
        for id in [-1, 2, i32::MIN, i32::MAX] {
            let nodes = vec![object(None, &[(id, "a")]), object(None, &[])];
            let error = model_variables(&TrackableObjectGraph { nodes }).unwrap_err();
            assert!(error.contains(&format!("object {id}, and has 2")), "{error}");
        }
        assert_eq!(model_variables(&TrackableObjectGraph::default()), Ok(Vec::new()));
    }
}
