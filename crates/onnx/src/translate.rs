//! From the nodes of a graph to those of ONNX.

mod detection;
mod emit;

use crate::proto::{
    AttributeProto, Dimension, DimensionProto, GraphProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto, element,
};
use crate::{BATCHES, OnnxError};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::Attention;
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::index::{Gather, OneHot, TopK};
use bessemer_ir::ops::layout::{Pad, Slice, Transpose};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::source::{Constant, Input};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, Graph, NodeId, Op, Role, TensorType, Value};
use std::collections::HashMap;

/// From `[N, H, W, C]` to `[N, C, H, W]`.
const TO_CHANNELS_FIRST: [usize; 4] = [0, 3, 1, 2];
/// From `[N, C, H, W]` to `[N, H, W, C]`.
const TO_PLAIN: [usize; 4] = [0, 2, 3, 1];
/// Weights of a convolution from `[KH, KW, C, O]` to `[O, C, KH, KW]`.
const TO_OIHW: [usize; 4] = [3, 2, 0, 1];
/// Name of the axis whose size is free.
const BATCH: &str = "batch";

/// Size of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dim {
    Fixed(usize),
    /// So many times the batch.
    Batch(usize),
}

/// Order of the axes of a tensor of four, those of images.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// As in the graph, `[N, H, W, C]`.
    Plain,
    /// `[N, C, H, W]`, as ONNX has images.
    ChannelsFirst,
}

/// A value of the graph in the file.
#[derive(Default)]
struct Item {
    /// Its elements, where no input of the model changes them.
    known: Option<Tensor>,
    /// The number that each element equals.
    uniform: Option<f64>,
    /// Its name in each layout, once it is in the file.
    plain: Option<String>,
    channels_first: Option<String>,
}

pub(super) struct Translator<'a> {
    model: &'a str,
    /// The graph for the two batches of [`BATCHES`].
    graphs: [&'a Graph; 2],
    parameters: &'a HashMap<String, Tensor>,
    items: HashMap<Value, Item>,
    /// Names of the constants that the translation itself needs, by their elements.
    numbers: HashMap<Vec<i64>, String>,
    file: GraphProto,
    /// The node that is translated.
    id: NodeId,
    /// Numbers names.
    names: usize,
}

impl<'a> Translator<'a> {
    pub(super) fn new(model: &'a str, graphs: [&'a Graph; 2], parameters: &'a HashMap<String, Tensor>) -> Self {
        let file = GraphProto { name: model.to_owned(), ..GraphProto::default() };
        let (items, numbers) = (HashMap::new(), HashMap::new());
        Self { model, graphs, parameters, items, numbers, file, id: NodeId(0), names: 0 }
    }

    pub(super) fn translate(mut self) -> Result<GraphProto, OnnxError> {
        let [first, second] = self.graphs;
        if first.len() != second.len() {
            return Err(self.depends_on_batch());
        }
        for id in first.ids() {
            self.id = id;
            if first.node(id).op.variant() != second.node(id).op.variant()
                || first.node(id).inputs != second.node(id).inputs
            {
                return Err(self.depends_on_batch());
            }
            self.node()?;
        }
        for (name, value) in first.outputs() {
            let source = self.plain(*value)?;
            self.push_named("Identity", &[source], vec![name.clone()], Vec::new());
            let info = self.info(name.clone(), first.dtype(*value), &self.dims(*value)?)?;
            self.file.output.push(info);
        }
        Ok(self.file)
    }

    fn depends_on_batch(&self) -> OnnxError {
        OnnxError::Batch { model: self.model.to_owned(), path: self.graphs[0].path(self.id).to_owned() }
    }

    fn no_form(&self, reason: &'static str) -> OnnxError {
        let graph = self.graphs[0];
        let op = graph.node(self.id).op.rule().name().to_owned();
        OnnxError::NoForm { model: self.model.to_owned(), op, path: graph.path(self.id).to_owned(), reason }
    }

    /// Adds what computes the outputs of the current node.
    fn node(&mut self) -> Result<(), OnnxError> {
        let [graph, other] = self.graphs;
        let node = graph.node(self.id);
        let fixed = node.outputs == other.node(self.id).outputs && node.op == other.node(self.id).op;
        if fixed && self.evaluate() {
            return Ok(());
        }
        let inputs = node.inputs.as_slice();
        let out = Value { node: self.id, output: 0 };
        match &node.op {
            Op::Input(input) => self.input(input, out)?,
            Op::Constant(constant) => match constant.uniform() {
                Some(uniform) => drop(self.items.insert(out, Item { uniform: Some(uniform), ..Item::default() })),
                None => self.ramp(constant, out)?,
            },
            Op::Unary(unary) => self.unary(unary.0, inputs[0])?,
            Op::Binary(binary) => self.pointwise(binary_name(binary.0), inputs, Vec::new())?,
            Op::Select(_) => self.pointwise("Where", inputs, Vec::new())?,
            Op::Cast(cast) => {
                let to = AttributeProto::int("to", self.element(cast.to)? as usize);
                self.pointwise("Cast", inputs, vec![to])?;
            }
            Op::Reshape(_) => {
                let x = self.plain(inputs[0])?;
                let y = self.reshaped(x, &self.dims(out)?)?;
                self.set(out, y, Layout::Plain);
            }
            Op::Broadcast(_) => {
                let x = self.plain(inputs[0])?;
                let y = self.expanded(x, &self.dims(out)?);
                self.set(out, y, Layout::Plain);
            }
            Op::Transpose(Transpose { perm }) => {
                let x = self.plain(inputs[0])?;
                let y = self.transposed(x, perm);
                self.set(out, y, Layout::Plain);
            }
            Op::Slice(slice) => self.slice(slice, inputs[0])?,
            Op::Pad(pad) => self.pad(pad, inputs[0])?,
            Op::Concat(concat) => {
                let layout = self.common_layout(inputs);
                let axis = AttributeProto::int("axis", axis_in(layout, concat.axis));
                let names = inputs.iter().map(|&x| self.named(x, layout)).collect::<Result<Vec<_>, _>>()?;
                let y = self.push("Concat", &names, vec![axis]);
                self.set(out, y, layout);
            }
            Op::Gather(gather) => self.gather(gather, inputs)?,
            Op::OneHot(one_hot) => self.one_hot(one_hot, inputs[0])?,
            Op::ArgMax(_) => {
                let x = self.plain(inputs[0])?;
                let axis = self.graphs[0].shape(inputs[0]).rank() - 1;
                let attributes = vec![AttributeProto::int("axis", axis), AttributeProto::int("keepdims", 0)];
                let y = self.push("ArgMax", &[x], attributes);
                let y = self.cast(y, element::INT32);
                self.set(out, y, Layout::Plain);
            }
            Op::TopK(top_k) => self.top_k(top_k, inputs[0])?,
            Op::Matmul(matmul) => self.matmul(matmul, inputs)?,
            op @ (Op::Conv2d(_) | Op::Conv2dDataGrad(_)) => {
                let x = self.named(inputs[0], Layout::ChannelsFirst)?;
                let y = self.convolution(op, x, inputs)?;
                self.set(out, y, Layout::ChannelsFirst);
            }
            Op::Limited(limited) => self.limited(limited, inputs)?,
            Op::Attention(attention) => self.attention(attention, inputs)?,
            Op::MaxPool2d(pool) => {
                let attributes = windows(pool.window, pool.stride, pool.pad);
                self.image("MaxPool", inputs[0], &[], attributes)?;
            }
            Op::AvgPool2d(pool) => {
                let mut attributes = windows(pool.window, pool.stride, pool.pad);
                attributes.push(AttributeProto::int("count_include_pad", usize::from(pool.count_include_pad)));
                self.image("AveragePool", inputs[0], &[], attributes)?;
            }
            Op::Upsample(upsample) => {
                let factors = [1.0, 1.0, upsample.factors[0] as f32, upsample.factors[1] as f32];
                let scales = self.fresh("scales");
                let data = factors.into_iter().flat_map(f32::to_le_bytes).collect();
                self.initializer(scales.clone(), element::FLOAT, &[4], data);
                let attributes = vec![
                    AttributeProto::text("mode", "nearest"),
                    AttributeProto::text("coordinate_transformation_mode", "asymmetric"),
                    AttributeProto::text("nearest_mode", "floor"),
                ];
                self.image("Resize", inputs[0], &[String::new(), scales], attributes)?;
            }
            Op::Reduce(reduce) => {
                let name = match reduce.kind {
                    ReduceKind::Sum => "ReduceSum",
                    ReduceKind::Max => "ReduceMax",
                    ReduceKind::Min => "ReduceMin",
                };
                let (y, layout) = self.reduce(name, inputs[0], &reduce.axes, reduce.keep_dims)?;
                self.set(out, y, layout);
            }
            Op::MeanVar(moments) => {
                let x = self.plain(inputs[0])?;
                let axes = AttributeProto::ints("axes", &moments.axes);
                let keep = |keep| vec![axes.clone(), AttributeProto::int("keepdims", keep)];
                let kept = self.push("ReduceMean", std::slice::from_ref(&x), keep(1));
                let mean = self.push("ReduceMean", std::slice::from_ref(&x), keep(0));
                let centred = self.op("Sub", &[&x, &kept]);
                let square = self.op("Mul", &[&centred, &centred]);
                let variance = self.push("ReduceMean", &[square], keep(0));
                self.set(out, mean, Layout::Plain);
                self.set(Value { output: 1, ..out }, variance, Layout::Plain);
            }
            Op::Softmax(_) => self.over_rows("Softmax", inputs[0])?,
            Op::LogSoftmax(_) => self.over_rows("LogSoftmax", inputs[0])?,
            Op::DecodeBoxes(decode) => self.decode_boxes(decode, inputs)?,
            Op::Suppress(suppress) => self.suppress(suppress, inputs)?,
            Op::PackRows(_) => self.pack_rows(inputs[0])?,
            Op::RoiAlign(align) => self.roi_align(align, inputs)?,
            Op::ScatterAdd(scatter) => self.scatter_add(scatter, inputs)?,
            // Those of both batches are the same, and were computed above.
            Op::Anchors(_) => return Err(self.depends_on_batch()),
            Op::MatchBoxes(_)
            | Op::EncodeBoxes(_)
            | Op::SampleLabels(_)
            | Op::SampleRows(_)
            | Op::RoiAlignGrad(_)
            | Op::MaskTargets(_)
            | Op::Random(_)
            | Op::Conv2dWeightGrad(_)
            | Op::AttentionGrad(_)
            | Op::MaxPool2dGrad(_)
            | Op::AvgPool2dGrad(_) => return Err(self.no_form("it belongs to training")),
            Op::ConvWithPrologue(_)
            | Op::ConvThenDepthwise(_)
            | Op::AllReduce(_)
            | Op::AllReduceStart(_)
            | Op::AllReduceWait(_)
            | Op::Fusion(_) => return Err(self.no_form("it is made by compilation")),
        }
        Ok(())
    }

    /// A constant with as many elements for each item of the batch, which rises by the same step after each so many elements.
    fn ramp(&mut self, constant: &Constant, out: Value) -> Result<(), OnnxError> {
        let Op::Constant(other) = &self.graphs[1].node(self.id).op else { return Err(self.depends_on_batch()) };
        let first = constant.data[0].0;
        let Some(repeat) = constant.data.iter().position(|element| element.0 != first) else {
            return Err(self.depends_on_batch());
        };
        let (step, times) = (constant.data[repeat].0 - first, constant.data.len() / BATCHES[0]);
        let is_ramp = |(data, batch): (&[Scalar], usize)| {
            let at = |number: usize| first + (number / repeat) as f64 * step;
            data.len() == times * batch && data.iter().enumerate().all(|(number, element)| element.0 == at(number))
        };
        if constant.dtype != DType::I32
            || ![&constant.data, &other.data].map(Vec::as_slice).into_iter().zip(BATCHES).all(is_ramp)
        {
            return Err(self.depends_on_batch());
        }
        let (batch, axis) = (self.batch(), self.integers(&[0]));
        let batch = self.op("Squeeze", &[&batch, &axis]);
        let batch = self.cast(batch, element::INT32);
        let [zero, one, times, repeat, step, first] =
            [0.0, 1.0, times as f64, repeat as f64, step, first].map(|number| self.scalar(DType::I32, number));
        let end = self.op("Mul", &[&batch, &times?]);
        let numbers = self.op("Range", &[&zero?, &end, &one?]);
        let numbers = self.op("Div", &[&numbers, &repeat?]);
        let numbers = self.op("Mul", &[&numbers, &step?]);
        let ramp = self.op("Add", &[&numbers, &first?]);
        let ramp = self.reshaped(ramp, &self.dims(out)?)?;
        self.set(out, ramp, Layout::Plain);
        Ok(())
    }

    /// Computes the current node here if its operands are known.
    fn evaluate(&mut self) -> bool {
        let node = self.graphs[0].node(self.id);
        let results = match &node.op {
            Op::Input(input) if input.role == Role::Feed => return false,
            Op::Input(input) => match self.parameters.get(&input.name) {
                Some(tensor) => vec![tensor.clone()],
                None => return false,
            },
            op => {
                let operands = node.inputs.iter().map(|input| self.items.get(input)?.known.as_ref());
                match operands.collect::<Option<Vec<_>>>() {
                    Some(operands) => op.rule().evaluate(&operands, &node.outputs),
                    None => return false,
                }
            }
        };
        for (output, tensor) in (0..).zip(results) {
            let uniform = self.graphs[0].uniform(Value { node: self.id, output });
            let item = Item { known: Some(tensor), uniform, ..Item::default() };
            self.items.insert(Value { node: self.id, output }, item);
        }
        true
    }

    /// Size of each axis of a value.
    fn dims(&self, value: Value) -> Result<Vec<Dim>, OnnxError> {
        let [first, second] = self.graphs.map(|graph| graph.shape(value));
        if first.rank() != second.rank() {
            return Err(self.depends_on_batch());
        }
        let dim = |(&a, &b): (&usize, &usize)| match a {
            _ if a == b => Ok(Dim::Fixed(a)),
            _ if a * BATCHES[1] == b * BATCHES[0] => Ok(Dim::Batch(a / BATCHES[0])),
            _ => Err(self.depends_on_batch()),
        };
        first.iter().zip(second.iter()).map(dim).collect()
    }

    fn element(&self, dtype: DType) -> Result<i32, OnnxError> {
        match dtype {
            DType::F32 => Ok(element::FLOAT),
            DType::I32 => Ok(element::INT32),
            DType::U8 => Ok(element::UINT8),
            DType::Bool => Ok(element::BOOL),
            DType::Bf16 | DType::F16 => Err(self.no_form("files have fp32")),
        }
    }

    fn info(&self, name: String, dtype: DType, dims: &[Dim]) -> Result<ValueInfoProto, OnnxError> {
        let size = |dim: &Dim| match *dim {
            Dim::Fixed(size) => Dimension::Value(size as i64),
            Dim::Batch(1) => Dimension::Parameter(BATCH.to_owned()),
            Dim::Batch(times) => Dimension::Parameter(format!("{times} * {BATCH}")),
        };
        let dim = dims.iter().map(|dim| DimensionProto { value: Some(size(dim)) }).collect();
        let tensor_type = TensorTypeProto { elem_type: self.element(dtype)?, shape: Some(TensorShapeProto { dim }) };
        Ok(ValueInfoProto { name, r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) })
    }

    /// Declares an input of the model; images of floats are `[N, C, H, W]` there.
    fn input(&mut self, input: &Input, out: Value) -> Result<(), OnnxError> {
        if input.role != Role::Feed {
            return Err(self.no_form("the weights lack it"));
        }
        let mut dims = self.dims(out)?;
        let is_image = dims.len() == 4 && input.ty.dtype == DType::F32;
        let layout = if is_image { Layout::ChannelsFirst } else { Layout::Plain };
        if is_image {
            dims = TO_CHANNELS_FIRST.map(|axis| dims[axis]).to_vec();
        }
        let info = self.info(input.name.clone(), input.ty.dtype, &dims)?;
        self.file.input.push(info);
        self.set(out, input.name.clone(), layout);
        Ok(())
    }

    /// Names an output of the current node.
    fn set_output(&mut self, output: usize, name: String, layout: Layout) {
        self.set(Value { node: self.id, output: output as _ }, name, layout);
    }

    fn set(&mut self, value: Value, name: String, layout: Layout) {
        let item = self.items.entry(value).or_default();
        match layout {
            Layout::Plain => item.plain = Some(name),
            Layout::ChannelsFirst => item.channels_first = Some(name),
        }
    }

    fn plain(&mut self, value: Value) -> Result<String, OnnxError> {
        self.named(value, Layout::Plain)
    }

    /// The name of a value in a layout, which it is brought into if need be. A value of fewer than four axes gets leading ones for
    /// [`Layout::ChannelsFirst`].
    fn named(&mut self, value: Value, layout: Layout) -> Result<String, OnnxError> {
        let item = &self.items[&value];
        let done = match layout {
            Layout::Plain => &item.plain,
            Layout::ChannelsFirst => &item.channels_first,
        };
        if let Some(name) = done {
            return Ok(name.clone());
        }
        let name = match (&item.known, item.uniform, layout) {
            (Some(tensor), _, Layout::Plain) => {
                let tensor = tensor.clone();
                self.tensor(&tensor, self.graphs[0].node(value.node).op.rule().name())?
            }
            (Some(tensor), _, Layout::ChannelsFirst) => {
                let tensor = permuted(&with_four_axes(tensor), &TO_CHANNELS_FIRST);
                self.tensor(&tensor, "channels_first")?
            }
            (None, Some(uniform), Layout::Plain) => {
                let one = self.scalar(self.graphs[0].dtype(value), uniform)?;
                self.expanded(one, &self.dims(value)?)
            }
            (None, _, Layout::ChannelsFirst) => {
                let mut plain = self.plain(value)?;
                let missing = 4 - self.graphs[0].shape(value).rank();
                if missing > 0 {
                    plain = self.unsqueezed(plain, &(0..missing).collect::<Vec<_>>());
                }
                self.transposed(plain, &TO_CHANNELS_FIRST)
            }
            (None, None, Layout::Plain) => {
                let first = item.channels_first.clone().expect("a value has a name when it is read");
                self.transposed(first, &TO_PLAIN)
            }
        };
        self.set(value, name.clone(), layout);
        Ok(name)
    }

    /// `[N, C, H, W]` if an operand is computed so and all may be.
    fn common_layout(&self, operands: &[Value]) -> Layout {
        let is_first = |value: &Value| {
            let item = &self.items[value];
            item.channels_first.is_some() && item.plain.is_none() && item.known.is_none()
        };
        if operands.iter().any(is_first) { Layout::ChannelsFirst } else { Layout::Plain }
    }

    fn unary(&mut self, kind: UnaryKind, x: Value) -> Result<(), OnnxError> {
        let layout = self.common_layout(&[x]);
        let x = self.named(x, layout)?;
        let name = match kind {
            UnaryKind::Neg => "Neg",
            UnaryKind::Abs => "Abs",
            UnaryKind::Exp => "Exp",
            UnaryKind::Log => "Log",
            UnaryKind::Sqrt | UnaryKind::Rsqrt => "Sqrt",
            UnaryKind::Recip => "Reciprocal",
            UnaryKind::Square => "Mul",
            UnaryKind::Relu => "Relu",
            UnaryKind::Sigmoid => "Sigmoid",
            UnaryKind::Tanh => "Tanh",
            UnaryKind::Erf => "Erf",
            UnaryKind::Sin => "Sin",
            UnaryKind::Cos => "Cos",
            UnaryKind::Floor => "Floor",
        };
        let operands = if kind == UnaryKind::Square { vec![x.clone(), x] } else { vec![x] };
        let mut y = self.push(name, &operands, Vec::new());
        if kind == UnaryKind::Rsqrt {
            y = self.op("Reciprocal", &[&y]);
        }
        self.set(Value { node: self.id, output: 0 }, y, layout);
        Ok(())
    }

    /// A node whose operands are broadcast to the shape of its output.
    fn pointwise(&mut self, op: &str, operands: &[Value], attributes: Vec<AttributeProto>) -> Result<(), OnnxError> {
        let graph = self.graphs[0];
        let out = Value { node: self.id, output: 0 };
        let layout = self.common_layout(operands);
        let fills = |x: &Value| self.items[x].uniform.is_none() && graph.shape(*x) == graph.shape(out);
        let is_filled = operands.iter().any(fills);
        let mut names = Vec::with_capacity(operands.len());
        for &x in operands {
            names.push(match self.items[&x].uniform {
                Some(uniform) if is_filled => self.scalar(graph.dtype(x), uniform)?,
                _ => self.named(x, layout)?,
            });
        }
        let y = self.push(op, &names, attributes);
        self.set(out, y, layout);
        Ok(())
    }

    /// A node that slides or scales images.
    fn image(&mut self, op: &str, x: Value, more: &[String], attributes: Vec<AttributeProto>) -> Result<(), OnnxError> {
        let x = self.named(x, Layout::ChannelsFirst)?;
        let y = self.push(op, &[&[x], more].concat(), attributes);
        self.set(Value { node: self.id, output: 0 }, y, Layout::ChannelsFirst);
        Ok(())
    }

    /// A convolution, or a transposed one, of `x [N, C, H, W]` by the second operand.
    fn convolution(&mut self, op: &Op, x: String, operands: &[Value]) -> Result<String, OnnxError> {
        let w = self.kernel(operands[1])?;
        let attributes = |conv: &Conv2d| {
            vec![
                AttributeProto::ints("strides", &conv.stride),
                AttributeProto::ints("dilations", &conv.dilation),
                AttributeProto::ints("pads", &corners(conv.pad)),
                AttributeProto::int("group", conv.groups),
            ]
        };
        match op {
            Op::Conv2d(conv) => Ok(self.push("Conv", &[x, w], attributes(conv))),
            Op::Conv2dDataGrad(grad) => {
                let (dy, kernel) = (self.graphs[0].shape(operands[0]), self.graphs[0].shape(operands[1]));
                let conv = &grad.conv;
                let rest = [0, 1].map(|axis| {
                    let covered = conv.stride[axis] * (dy[axis + 1] - 1) + conv.dilation[axis] * (kernel[axis] - 1) + 1;
                    grad.input[axis] + conv.pad[axis][0] + conv.pad[axis][1] - covered
                });
                let rest = AttributeProto::ints("output_padding", &rest);
                Ok(self.push("ConvTranspose", &[x, w], [attributes(conv), vec![rest]].concat()))
            }
            _ => Err(self.no_form("it is no convolution of images")),
        }
    }

    /// Weights of a convolution, `[O, C, KH, KW]`.
    fn kernel(&mut self, w: Value) -> Result<String, OnnxError> {
        match &self.items[&w].known {
            Some(tensor) => {
                let tensor = permuted(tensor, &TO_OIHW);
                self.tensor(&tensor, "weight")
            }
            None => {
                let w = self.plain(w)?;
                Ok(self.transposed(w, &TO_OIHW))
            }
        }
    }

    fn over_rows(&mut self, op: &str, x: Value) -> Result<(), OnnxError> {
        let axis = self.graphs[0].shape(x).rank() - 1;
        let x = self.plain(x)?;
        let y = self.push(op, &[x], vec![AttributeProto::int("axis", axis)]);
        self.set(Value { node: self.id, output: 0 }, y, Layout::Plain);
        Ok(())
    }

    fn reduce(&mut self, op: &str, x: Value, axes: &[usize], keep_dims: bool) -> Result<(String, Layout), OnnxError> {
        // Where height and width go, the order of the others is the same in both layouts.
        let layout = if keep_dims || axes == [1, 2] { self.common_layout(&[x]) } else { Layout::Plain };
        let x = self.named(x, layout)?;
        let axes: Vec<usize> = axes.iter().map(|&axis| axis_in(layout, axis)).collect();
        let keep = AttributeProto::int("keepdims", usize::from(keep_dims));
        let y = if op == "ReduceSum" {
            let axes = self.sizes(&axes);
            self.push(op, &[x, axes], vec![keep])
        } else {
            self.push(op, &[x], vec![AttributeProto::ints("axes", &axes), keep])
        };
        Ok((y, if keep_dims { layout } else { Layout::Plain }))
    }

    fn slice(&mut self, slice: &Slice, x: Value) -> Result<(), OnnxError> {
        let Op::Slice(other) = &self.graphs[1].node(self.id).op else { return Err(self.depends_on_batch()) };
        if slice.start != other.start || slice.step != other.step {
            return Err(self.depends_on_batch());
        }
        let mut stop = Vec::with_capacity(slice.stop.len());
        for (axis, dim) in self.dims(x)?.into_iter().enumerate() {
            let is_whole = self.graphs.map(|graph| graph.shape(x)[axis]) == [slice.stop[axis], other.stop[axis]];
            stop.push(match dim {
                Dim::Batch(_) if is_whole => i64::MAX,
                _ if slice.stop[axis] == other.stop[axis] => slice.stop[axis] as i64,
                _ => return Err(self.depends_on_batch()),
            });
        }
        let (start, stop) = (self.sizes(&slice.start), self.integers(&stop));
        let axes = self.sizes(&(0..slice.start.len()).collect::<Vec<_>>());
        let step = self.sizes(&slice.step);
        let x = self.plain(x)?;
        let y = self.op("Slice", &[&x, &start, &stop, &axes, &step]);
        self.set(Value { node: self.id, output: 0 }, y, Layout::Plain);
        Ok(())
    }

    fn pad(&mut self, pad: &Pad, x: Value) -> Result<(), OnnxError> {
        if pad.interior.iter().any(|&zeros| zeros > 0) {
            return Err(self.no_form("there is no padding between elements"));
        }
        let pads = self.sizes(&[pad.low.as_slice(), &pad.high].concat());
        let x = self.plain(x)?;
        let y = self.op("Pad", &[&x, &pads]);
        self.set(Value { node: self.id, output: 0 }, y, Layout::Plain);
        Ok(())
    }

    fn gather(&mut self, gather: &Gather, operands: &[Value]) -> Result<(), OnnxError> {
        let (mut table, mut indices) = (self.plain(operands[0])?, self.plain(operands[1])?);
        let y = if gather.batch == 0 {
            self.push("Gather", &[table, indices], vec![AttributeProto::int("axis", gather.axis)])
        } else {
            let (rank, own) = (self.graphs[0].shape(operands[0]).rank(), self.graphs[0].shape(operands[1]).rank());
            if gather.axis > gather.batch {
                if own > gather.batch {
                    return Err(self.no_form("axes lie between those of the batch and the one that is chosen along"));
                }
                // The axis goes to those of the batch; with one index for each item it is gone afterwards.
                let others = (gather.batch..rank).filter(|&axis| axis != gather.axis);
                let perm: Vec<usize> = (0..gather.batch).chain([gather.axis]).chain(others).collect();
                table = self.transposed(table, &perm);
            }
            indices = self.unsqueezed(indices, &[own]);
            indices = self.cast(indices, element::INT64);
            self.push("GatherND", &[table, indices], vec![AttributeProto::int("batch_dims", gather.batch)])
        };
        self.set(Value { node: self.id, output: 0 }, y, Layout::Plain);
        Ok(())
    }

    /// Compares each number with all classes.
    fn one_hot(&mut self, one_hot: &OneHot, x: Value) -> Result<(), OnnxError> {
        let rank = self.sizes(&[self.graphs[0].shape(x).rank()]);
        let x = self.plain(x)?;
        let column = self.op("Unsqueeze", &[&x, &rank]);
        let ty = TensorType::new(DType::I32, [one_hot.depth]);
        let classes = self.tensor(&Tensor::from_fn(ty, |class| class as f64), "classes")?;
        let hits = self.op("Equal", &[&column, &classes]);
        let y = self.cast(hits, element::FLOAT);
        self.set(Value { node: self.id, output: 0 }, y, Layout::Plain);
        Ok(())
    }

    fn top_k(&mut self, top_k: &TopK, x: Value) -> Result<(), OnnxError> {
        let shape = self.graphs[0].shape(x);
        let columns = if top_k.axes == 2 { shape[shape.rank() - 1] } else { 1 };
        let (mut dims, mut x) = (self.dims(x)?, self.plain(x)?);
        if top_k.axes == 2 {
            dims.truncate(shape.rank() - 2);
            dims.push(Dim::Fixed(shape[shape.rank() - 2] * columns));
            x = self.reshaped(x, &dims)?;
        }
        let k = self.sizes(&[top_k.k]);
        let (values, places) = (self.fresh("TopK"), self.fresh("TopK"));
        let axis = vec![AttributeProto::int("axis", dims.len() - 1)];
        self.push_named("TopK", &[x, k], vec![values.clone(), places.clone()], axis);
        self.set_output(0, values, Layout::Plain);
        let columns = self.sizes(&[columns]);
        for (output, op) in (1..=top_k.axes).zip(["Div", "Mod"]) {
            let place = self.op(op, &[&places, &columns]);
            let place = self.cast(place, element::INT32);
            self.set_output(output, place, Layout::Plain);
        }
        Ok(())
    }

    fn matmul(&mut self, matmul: &Matmul, operands: &[Value]) -> Result<(), OnnxError> {
        let mut names = [String::new(), String::new()];
        for ((name, &x), transposes) in names.iter_mut().zip(operands).zip([matmul.trans_a, matmul.trans_b]) {
            *name = self.plain(x)?;
            if transposes {
                let rank = self.graphs[0].shape(x).rank();
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(rank - 2, rank - 1);
                *name = self.transposed(name.clone(), &perm);
            }
        }
        let y = self.push("MatMul", &names, Vec::new());
        self.set(Value { node: self.id, output: 0 }, y, Layout::Plain);
        Ok(())
    }

    fn attention(&mut self, attention: &Attention, operands: &[Value]) -> Result<(), OnnxError> {
        let out = Value { node: self.id, output: 0 };
        let graph = self.graphs[0];
        let is_read = |value| graph.nodes().iter().any(|node| node.inputs.contains(&value));
        if attention.dropout.is_some() || is_read(Value { output: 1, ..out }) {
            return Err(self.no_form("it belongs to training"));
        }
        let mut heads =
            [(0, [0, 2, 1, 3]), (1, [0, 2, 3, 1]), (2, [0, 2, 1, 3])].map(|operand| (operand, String::new()));
        for ((operand, perm), name) in &mut heads {
            let x = operands[*operand];
            let dims = self.dims(x)?;
            let Dim::Fixed(width) = dims[2] else { return Err(self.depends_on_batch()) };
            let split = [Dim::Fixed(attention.heads), Dim::Fixed(width / attention.heads)];
            let x = self.plain(x)?;
            let x = self.reshaped(x, &[&dims[..2], &split].concat())?;
            *name = self.transposed(x, perm);
        }
        let [q, k, v] = heads.map(|(_, name)| name);
        let scale = self.scalar(DType::F32, attention.scale.0)?;
        let scores = self.op("MatMul", &[&q, &k]);
        let scores = self.op("Mul", &[&scores, &scale]);
        let (bias, axes) = (self.plain(operands[3])?, self.sizes(&[1, 2]));
        let bias = self.op("Unsqueeze", &[&bias, &axes]);
        let scores = self.op("Add", &[&scores, &bias]);
        let probabilities = self.push("Softmax", &[scores], vec![AttributeProto::int("axis", 3)]);
        let mixed = self.op("MatMul", &[&probabilities, &v]);
        let mixed = self.transposed(mixed, &[0, 2, 1, 3]);
        let y = self.reshaped(mixed, &self.dims(out)?)?;
        self.set(out, y, Layout::Plain);
        Ok(())
    }
}

fn axis_in(layout: Layout, axis: usize) -> usize {
    match layout {
        Layout::Plain => axis,
        Layout::ChannelsFirst => TO_PLAIN[axis],
    }
}

/// `[top, left, bottom, right]`
fn corners([height, width]: [[usize; 2]; 2]) -> [usize; 4] {
    [height[0], width[0], height[1], width[1]]
}

fn windows(window: [usize; 2], stride: [usize; 2], pad: [[usize; 2]; 2]) -> Vec<AttributeProto> {
    vec![
        AttributeProto::ints("kernel_shape", &window),
        AttributeProto::ints("strides", &stride),
        AttributeProto::ints("pads", &corners(pad)),
    ]
}

fn with_four_axes(tensor: &Tensor) -> Tensor {
    let shape = [&vec![1; 4 - tensor.ty.shape.rank()], tensor.ty.shape.dims()].concat();
    Tensor::new(TensorType::new(tensor.ty.dtype, shape), tensor.data.clone())
}

fn permuted(tensor: &Tensor, perm: &[usize]) -> Tensor {
    let dims: Vec<usize> = perm.iter().map(|&axis| tensor.ty.shape[axis]).collect();
    let ty = TensorType::new(tensor.ty.dtype, dims);
    let op = Op::from(Transpose { perm: perm.to_vec() });
    op.rule().evaluate(&[tensor], std::slice::from_ref(&ty)).remove(0)
}

fn binary_name(kind: BinaryKind) -> &'static str {
    match kind {
        BinaryKind::Add => "Add",
        BinaryKind::Sub => "Sub",
        BinaryKind::Mul => "Mul",
        BinaryKind::Div => "Div",
        BinaryKind::Max => "Max",
        BinaryKind::Min => "Min",
        BinaryKind::Pow => "Pow",
        BinaryKind::Eq => "Equal",
        BinaryKind::Lt => "Less",
        BinaryKind::Le => "LessOrEqual",
        BinaryKind::Gt => "Greater",
        BinaryKind::Ge => "GreaterOrEqual",
    }
}
