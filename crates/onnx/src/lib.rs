//! Models as ONNX files: the graph of inference, operation by operation, with its weights.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod proto;
mod translate;

use bessemer_ir::passes::{fold, simplify};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{Graph, GraphError};
use prost::Message;
use proto::{ModelProto, OperatorSetIdProto, StringStringEntryProto};
use std::collections::HashMap;
use translate::Translator;

/// Version of the ONNX format.
const IR_VERSION: i64 = 8;
/// Version of ONNX's set of operators.
const OPSET: i64 = 17;
/// Largest message of Protocol Buffers, in bytes.
const LARGEST: usize = i32::MAX as usize;
/// Batches of the two graphs that an export compares: what differs depends on the batch.
pub const BATCHES: [usize; 2] = [2, 3];

/// Why a model cannot be written as an ONNX file.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    #[error("{model} has no ONNX form: {op} at `{path}` cannot be expressed{}", because(.reason))]
    NoForm { model: String, op: String, path: String, reason: &'static str },
    #[error("{model} has no ONNX form: its graph depends on the batch in more than its shapes, at `{path}`")]
    Batch { model: String, path: String },
    #[error("{model} takes {bytes} bytes as an ONNX file; the format allows {LARGEST}")]
    TooLarge { model: String, bytes: usize },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// What is written.
#[derive(Debug)]
pub struct Export<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// Inference for [`BATCHES`], before compilation.
    pub graphs: [Graph; 2],
    /// The content of each parameter and state of the graphs, by name.
    pub parameters: HashMap<String, Tensor>,
    /// What the file says of itself beside the name of the model.
    pub metadata: Vec<(&'static str, String)>,
}

/// An ONNX file.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// The number of tensors in it.
    pub tensors: usize,
}

impl Export<'_> {
    /// The file.
    ///
    /// # Errors
    /// An operation without an ONNX form; a file of more than 2 GiB.
    pub fn encode(&self) -> Result<Encoded, OnnxError> {
        let model = self.message()?;
        let bytes = model.encoded_len();
        if bytes > LARGEST {
            return Err(OnnxError::TooLarge { model: self.model.to_owned(), bytes });
        }
        let tensors = model.graph.as_ref().map_or(0, |graph| graph.initializer.len());
        Ok(Encoded { bytes: model.encode_to_vec(), tensors })
    }

    fn message(&self) -> Result<ModelProto, OnnxError> {
        let [first, second] = &self.graphs;
        let graphs = [folded(first)?, folded(second)?];
        let graph = Translator::new(self.model, [&graphs[0], &graphs[1]], &self.parameters).translate()?;
        let entry = |key: &str, value: &str| StringStringEntryProto { key: key.to_owned(), value: value.to_owned() };
        let metadata = self.metadata.iter().map(|(key, value)| entry(key, value));
        Ok(ModelProto {
            ir_version: IR_VERSION,
            producer_name: "bessemer".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
            metadata_props: std::iter::once(entry("model", self.model)).chain(metadata).collect(),
        })
    }
}

/// The graph with its batch norms in the weights.
fn folded(graph: &Graph) -> Result<Graph, GraphError> {
    simplify::simplify(&fold::fold(&simplify::simplify(graph)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::ops::layout::Pad;
    use bessemer_ir::{Role, TensorType};
    use bessemer_models::bert::{self, BertOptions, Sequences};
    use bessemer_models::efficientdet::{self, SuppressionKind};
    use bessemer_models::maskrcnn::{self, Flavour};
    use bessemer_models::{Model, find};
    use bessemer_nn::initialise;
    use proto::{Dimension, GraphProto};
    use std::collections::HashSet;

    fn classifier(name: &str) -> [Model; 2] {
        let spec = find(name).unwrap();
        BATCHES.map(|batch| Model::infer(spec.architecture, &spec.options(), batch).unwrap())
    }

    /// BERT gathers the words to predict by numbers that depend on the batch.
    fn text() -> [Model; 2] {
        let (config, options) = (bert::BertConfig::tiny(), BertOptions::default());
        BATCHES.map(|batch| bert::infer(&config, Sequences { batch, length: 16, predictions: 3 }, &options).unwrap())
    }

    fn exported(name: &str, models: [Model; 2]) -> Result<ModelProto, OnnxError> {
        let [first, second] = models;
        let tensor = |spec: &bessemer_nn::ParamSpec| {
            let data = initialise(spec, 3).into_iter().map(f64::from).collect();
            (spec.name.clone(), Tensor::new(spec.ty.clone(), data))
        };
        let parameters = first.specs.iter().map(tensor).collect();
        let graphs = [first.graph, second.graph];
        let export = Export { model: name, graphs, parameters, metadata: Vec::new() };
        Ok(ModelProto::decode(export.message()?.encode_to_vec().as_slice()).unwrap())
    }

    fn one_stage(suppression: SuppressionKind) -> [Model; 2] {
        let options = efficientdet::find("efficientdet-tiny").unwrap().options();
        let detection = efficientdet::DetectionOptions { suppression, ..efficientdet::DetectionOptions::default() };
        BATCHES.map(|batch| efficientdet::detect(&options, &detection, batch).unwrap())
    }

    fn two_stages(flavour: Flavour) -> [Model; 2] {
        let options = maskrcnn::find("mask-rcnn-tiny").unwrap().options(flavour);
        let detection = maskrcnn::DetectionOptions::new(flavour);
        BATCHES.map(|batch| maskrcnn::detect(&options, &detection, batch).unwrap())
    }

    /// Nothing is read, in loops neither, before it is known; adds what the graph computes.
    fn read_in_order(graph: &GraphProto, known: &mut HashSet<String>) {
        for node in &graph.node {
            let read = node.input.iter().filter(|input| !input.is_empty());
            read.for_each(|input| assert!(known.contains(input), "{input} of {} in {}", node.name, graph.name));
            for body in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
                let mut inside = known.clone();
                inside.extend(body.input.iter().map(|input| input.name.clone()));
                read_in_order(body, &mut inside);
                assert!(body.output.iter().all(|output| inside.contains(&output.name)));
            }
            assert!(node.output.iter().all(|output| known.insert(output.clone())));
        }
    }

    #[test]
    fn each_value_is_there_before_it_is_read() {
        for (name, models, first) in [
            ("resnet20-cifar", classifier("resnet20-cifar"), ("logits", "batch")),
            ("efficientnet-tiny", classifier("efficientnet-tiny"), ("logits", "batch")),
            ("bert-tiny", text(), ("mlm_logits", "batch")),
            ("efficientdet-tiny", one_stage(SuppressionKind::Hard), ("boxes", "batch")),
            ("efficientdet-tiny", one_stage(SuppressionKind::Soft), ("boxes", "batch")),
            ("mask-rcnn-tiny", two_stages(Flavour::Torchvision), ("boxes", "batch")),
            ("mask-rcnn-tiny", two_stages(Flavour::Nvidia), ("boxes", "batch")),
        ] {
            let graph = exported(name, models).unwrap().graph.unwrap();
            let mut known: HashSet<String> = graph.input.iter().map(|input| input.name.clone()).collect();
            for tensor in &graph.initializer {
                assert!(known.insert(tensor.name.clone()), "{} is twice in {name}", tensor.name);
            }
            read_in_order(&graph, &mut known);
            let tensor = graph.output[0].r#type.clone().unwrap().tensor_type.unwrap();
            let sizes: Vec<_> = tensor.shape.unwrap().dim.into_iter().map(|dim| dim.value.unwrap()).collect();
            assert_eq!(
                (graph.output[0].name.as_str(), &sizes[0]),
                (first.0, &Dimension::Parameter(first.1.to_owned()))
            );
        }
    }

    #[test]
    fn what_has_no_form_is_named() {
        let models = BATCHES.map(|batch| {
            let mut model = classifier("resnet20-cifar")[0].clone();
            let mut graph = Graph::new();
            let rows = graph.input("rows", Role::Feed, TensorType::f32([batch, 4])).unwrap();
            let apart = Pad { low: vec![0, 0], high: vec![0, 0], interior: vec![0, 1] };
            let apart = graph.push1(apart, &[rows]).unwrap();
            graph.output("apart", apart);
            model.graph = graph;
            model
        });
        let error = exported("own", models).unwrap_err().to_string();
        assert!(error.starts_with("own has no ONNX form: pad at"), "{error}");
    }
}
