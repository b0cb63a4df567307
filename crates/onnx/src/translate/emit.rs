//! Names, nodes and tensors of the file.

use super::{Dim, Translator};
use crate::OnnxError;
use crate::proto::{AttributeProto, NodeProto, TensorProto, element};
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, Shape, TensorType};

impl Translator<'_> {
    /// A name that no other value has.
    pub(super) fn fresh(&mut self, what: &str) -> String {
        self.names += 1;
        let path = self.graphs[0].path(self.id);
        let dot = if path.is_empty() { "" } else { "." };
        format!("{path}{dot}{what}_{}", self.names)
    }

    pub(super) fn push_named(
        &mut self,
        op: &str,
        inputs: &[String],
        output: Vec<String>,
        attribute: Vec<AttributeProto>,
    ) {
        let name = self.fresh(op);
        self.file.node.push(NodeProto { input: inputs.to_vec(), output, name, op_type: op.to_owned(), attribute });
    }

    /// Adds a node of one output and returns the name of that.
    pub(super) fn push(&mut self, op: &str, inputs: &[String], attributes: Vec<AttributeProto>) -> String {
        let output = self.fresh(op);
        self.push_named(op, inputs, vec![output.clone()], attributes);
        output
    }

    /// As [`Translator::push`], without attributes.
    pub(super) fn op(&mut self, op: &str, inputs: &[&str]) -> String {
        let inputs: Vec<String> = inputs.iter().map(|&input| input.to_owned()).collect();
        self.push(op, &inputs, Vec::new())
    }

    pub(super) fn initializer(&mut self, name: String, data_type: i32, dims: &[usize], raw_data: Vec<u8>) {
        let dims = dims.iter().map(|&size| size as i64).collect();
        self.file.initializer.push(TensorProto { dims, data_type, name, raw_data });
    }

    /// Adds a tensor of known elements and returns its name.
    pub(super) fn tensor(&mut self, tensor: &Tensor, what: &str) -> Result<String, OnnxError> {
        let elements = tensor.data.iter();
        let data = match tensor.ty.dtype {
            DType::F32 => elements.flat_map(|&x| (x as f32).to_le_bytes()).collect(),
            DType::I32 => elements.flat_map(|&x| (x as i32).to_le_bytes()).collect(),
            DType::U8 | DType::Bool => elements.map(|&x| x as u8).collect(),
            DType::Bf16 | DType::F16 => return Err(self.no_form("files have fp32")),
        };
        let name = self.fresh(what);
        let element = self.element(tensor.ty.dtype)?;
        self.initializer(name.clone(), element, tensor.ty.shape.dims(), data);
        Ok(name)
    }

    /// A list of integers for shapes and axes, each one once in the file.
    pub(super) fn integers(&mut self, numbers: &[i64]) -> String {
        if let Some(name) = self.numbers.get(numbers) {
            return name.clone();
        }
        let text: Vec<String> = numbers.iter().map(i64::to_string).collect();
        let name = format!("integers:{}", text.join(","));
        let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.initializer(name.clone(), element::INT64, &[numbers.len()], data);
        self.numbers.insert(numbers.to_vec(), name.clone());
        name
    }

    pub(super) fn sizes(&mut self, numbers: &[usize]) -> String {
        self.integers(&numbers.iter().map(|&number| number as i64).collect::<Vec<_>>())
    }

    pub(super) fn scalar(&mut self, dtype: DType, number: f64) -> Result<String, OnnxError> {
        self.tensor(&Tensor::new(TensorType::new(dtype, Shape::scalar()), vec![number]), "scalar")
    }

    pub(super) fn transposed(&mut self, x: String, perm: &[usize]) -> String {
        self.push("Transpose", &[x], vec![AttributeProto::ints("perm", perm)])
    }

    pub(super) fn unsqueezed(&mut self, x: String, axes: &[usize]) -> String {
        let axes = self.sizes(axes);
        self.op("Unsqueeze", &[&x, &axes])
    }

    pub(super) fn cast(&mut self, x: String, to: i32) -> String {
        self.push("Cast", &[x], vec![AttributeProto::int("to", to as usize)])
    }

    /// Size of the first axis, `i64[1]`.
    pub(super) fn leading(&mut self, x: &str) -> String {
        let range = vec![AttributeProto::int("start", 0), AttributeProto::int("end", 1)];
        self.push("Shape", &[x.to_owned()], range)
    }

    /// The batch, `i64[1]`, read off the first input.
    pub(super) fn batch(&mut self) -> String {
        let source = self.file.input[0].name.clone();
        self.leading(&source)
    }

    /// A shape as a tensor.
    pub(super) fn shape(&mut self, dims: &[Dim]) -> String {
        if dims.iter().all(|dim| matches!(dim, Dim::Fixed(_))) {
            return self.integers(&dims.iter().map(fixed_or_rest).collect::<Vec<_>>());
        }
        let batch = self.batch();
        let mut parts = Vec::with_capacity(dims.len());
        for dim in dims {
            parts.push(match *dim {
                Dim::Fixed(size) => self.sizes(&[size]),
                Dim::Batch(times) => {
                    let times = self.sizes(&[times]);
                    self.op("Mul", &[&batch, &times])
                }
            });
        }
        self.push("Concat", &parts, vec![AttributeProto::int("axis", 0)])
    }

    pub(super) fn reshaped(&mut self, x: String, dims: &[Dim]) -> Result<String, OnnxError> {
        let free = dims.iter().filter(|dim| matches!(dim, Dim::Batch(_))).count();
        let shape = match free {
            0 | 1 => self.integers(&dims.iter().map(fixed_or_rest).collect::<Vec<_>>()),
            _ => self.shape(dims),
        };
        Ok(self.op("Reshape", &[&x, &shape]))
    }

    pub(super) fn expanded(&mut self, x: String, dims: &[Dim]) -> String {
        let shape = self.shape(dims);
        self.op("Expand", &[&x, &shape])
    }
}

/// The size for a shape of which one axis takes the rest.
fn fixed_or_rest(dim: &Dim) -> i64 {
    match *dim {
        Dim::Fixed(size) => size as i64,
        Dim::Batch(_) => -1,
    }
}
