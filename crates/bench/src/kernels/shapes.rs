//! The products of models that the zoo does not have yet, as training steps of nothing but these.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::conv::{Conv2d, same_padding};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::{DType, Graph, GraphError, Op, Role, TensorType, Value};

/// A loss that depends on the product of each layer.
struct Step {
    graph: Graph,
    loss: Value,
    trained: Vec<Value>,
}

impl Step {
    fn new() -> Result<Step, GraphError> {
        let mut graph = Graph::new();
        let loss = graph.constant(DType::F32, [], 0.0)?;
        Ok(Step { graph, loss, trained: Vec::new() })
    }

    /// Adds a product of tensors of these shapes at `path`.
    fn product(&mut self, path: &str, op: impl Into<Op>, a: &[usize], b: &[usize]) -> Result<(), GraphError> {
        let a = self.operand(path, "a", a)?;
        let b = self.operand(path, "b", b)?;
        self.trained.extend([a, b]);
        self.term(path, op, a, b)
    }

    /// As [`Step::product`], for a first operand without a gradient.
    fn first_product(&mut self, path: &str, op: impl Into<Op>, a: &[usize], b: &[usize]) -> Result<(), GraphError> {
        let a = self.operand(path, "a", a)?;
        let b = self.operand(path, "b", b)?;
        self.trained.push(b);
        self.term(path, op, a, b)
    }

    fn operand(&mut self, path: &str, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
        self.graph.input(&format!("{path}.{name}"), Role::Parameter, TensorType::f32(shape))
    }

    fn term(&mut self, path: &str, op: impl Into<Op>, a: Value, b: Value) -> Result<(), GraphError> {
        let loss = self.loss;
        self.loss = self.graph.at_path(path, |g| {
            let y = g.push1(op, &[a, b])?;
            let axes: Vec<usize> = (0..g.shape(y).rank()).collect();
            let sum = g.sum(y, &axes)?;
            g.add(loss, sum)
        })?;
        Ok(())
    }

    /// Adds the linear layer `[rows, inputs]` to `[rows, outputs]`, its weights `[outputs, inputs]`.
    fn linear(&mut self, path: &str, rows: usize, inputs: usize, outputs: usize) -> Result<(), GraphError> {
        self.product(path, Matmul { trans_a: false, trans_b: true }, &[rows, inputs], &[outputs, inputs])
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        gradients(&mut self.graph, self.loss, &self.trained)?;
        Ok(self.graph)
    }
}

/// Blocks of one stage of EfficientNet.
struct Stage {
    /// Channels inside a block, as a multiple of its input's.
    expansion: usize,
    kernel: usize,
    /// Of the first block; 1 for the others.
    stride: usize,
    channels: usize,
    blocks: usize,
}

const fn stage(expansion: usize, kernel: usize, stride: usize, channels: usize, blocks: usize) -> Stage {
    Stage { expansion, kernel, stride, channels, blocks }
}

/// Stages 2 to 8 of EfficientNet-B0: Tan, Le, "EfficientNet: Rethinking model scaling for convolutional neural networks",
/// 2019, table 1.
const EFFICIENTNET_B0: [Stage; 7] = [
    stage(1, 3, 1, 16, 1),
    stage(6, 3, 2, 24, 2),
    stage(6, 5, 2, 40, 2),
    stage(6, 3, 2, 80, 3),
    stage(6, 5, 1, 112, 3),
    stage(6, 5, 2, 192, 4),
    stage(6, 3, 1, 320, 1),
];

const STEM_CHANNELS: usize = 32;
const HEAD_CHANNELS: usize = 1280;
/// Channels of a block's input divided by those of its squeezed vector (section 5 of the paper: a ratio of 0.25).
const SQUEEZE: usize = 4;

/// Products of EfficientNet-B0 for pictures of 224 by 224.
pub(super) fn efficientnet_b0(batch: usize) -> Result<Graph, GraphError> {
    let mut step = Step::new()?;
    step.first_product("stem", convolution(224, 3, 2, 1), &[batch, 224, 224, 3], &[3, 3, 3, STEM_CHANNELS])?;
    let (mut size, mut channels, mut number) = (112, STEM_CHANNELS, 0);
    for stage in &EFFICIENTNET_B0 {
        for block in 0..stage.blocks {
            let stride = if block == 0 { stage.stride } else { 1 };
            add_block(&mut step, &format!("block{number}"), [batch, size, channels], stage, stride)?;
            (size, channels, number) = (size.div_ceil(stride), stage.channels, number + 1);
        }
    }
    step.product("head", convolution(size, 1, 1, 1), &[batch, size, size, channels], &[1, 1, channels, HEAD_CHANNELS])?;
    step.linear("classifier", batch, HEAD_CHANNELS, 1000)?;
    step.finish()
}

/// A square convolution with TensorFlow's padding, as the published model has it.
fn convolution(size: usize, kernel: usize, stride: usize, groups: usize) -> Conv2d {
    let pad = [same_padding(size, kernel, stride, 1); 2];
    Conv2d { groups, ..Conv2d::new([stride; 2], pad) }
}

/// An inverted residual block with squeeze and excitation on `[batch, size, size, channels]`.
fn add_block(
    step: &mut Step,
    path: &str,
    [batch, size, channels]: [usize; 3],
    stage: &Stage,
    stride: usize,
) -> Result<(), GraphError> {
    let at = |name: &str| format!("{path}.{name}");
    let (inner, kernel) = (channels * stage.expansion, stage.kernel);
    if stage.expansion > 1 {
        let x = [batch, size, size, channels];
        step.product(&at("expand"), convolution(size, 1, 1, 1), &x, &[1, 1, channels, inner])?;
    }
    let depthwise = convolution(size, kernel, stride, inner);
    step.product(&at("depthwise"), depthwise, &[batch, size, size, inner], &[kernel, kernel, 1, inner])?;
    let (out, squeezed) = (size.div_ceil(stride), channels / SQUEEZE);
    step.linear(&at("squeeze"), batch, inner, squeezed)?;
    step.linear(&at("excite"), batch, squeezed, inner)?;
    let y = [batch, out, out, inner];
    step.product(&at("project"), convolution(out, 1, 1, 1), &y, &[1, 1, inner, stage.channels])
}

/// Sequences of a batch and their length, of BERT-base's two phases of pre-training and of fine-tuning.
pub(super) const BERT_BATCHES: [(usize, usize); 2] = [(16, 128), (4, 384)];

/// BERT-base: Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of deep bidirectional transformers for language
/// understanding", 2018, section 3; the vocabulary is that of the published uncased model.
pub(super) struct Bert {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub inner: usize,
    pub vocabulary: usize,
    /// Masked positions of a sequence that are predicted (section A.2: at most 20 of 128).
    pub predictions: usize,
}

pub(super) const BERT_BASE: Bert =
    Bert { layers: 12, hidden: 768, heads: 12, inner: 3072, vocabulary: 30522, predictions: 20 };

/// Products of a pre-training step of BERT-base.
pub(super) fn bert_base(sequences: usize, length: usize) -> Result<Graph, GraphError> {
    let Bert { layers, hidden, heads, inner, vocabulary, predictions } = BERT_BASE;
    let (tokens, head) = (sequences * length, hidden / heads);
    let (split, square) = ([sequences, heads, length, head], [sequences, heads, length, length]);
    let mut step = Step::new()?;
    for layer in 0..layers {
        let at = |name: &str| format!("encoder.{layer}.{name}");
        for name in ["query", "key", "value"] {
            step.linear(&at(name), tokens, hidden, hidden)?;
        }
        step.product(&at("scores"), Matmul { trans_a: false, trans_b: true }, &split, &split)?;
        step.product(&at("context"), Matmul { trans_a: false, trans_b: false }, &square, &split)?;
        step.linear(&at("output"), tokens, hidden, hidden)?;
        step.linear(&at("widen"), tokens, hidden, inner)?;
        step.linear(&at("narrow"), tokens, inner, hidden)?;
    }
    step.linear("pooler", sequences, hidden, hidden)?;
    step.linear("predictions.transform", sequences * predictions, hidden, hidden)?;
    step.linear("predictions.vocabulary", sequences * predictions, hidden, vocabulary)?;
    step.finish()
}
