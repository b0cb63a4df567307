//! Products: matrices by cuBLASLt, convolutions by cuDNN, attention by kernels of this program, or by matrices.

use super::{Lowered, Place, Step, Unsupported, region};
use crate::cublaslt::{Epilogue, Product};
use crate::cudnn::{Convolution, Geometry, Pass};
use crate::kernels::MOST_ELEMENTS;
use crate::kernels::attention::{self, rows, tensor_cores};
use crate::kernels::copies::first_items;
use bessemer_ir::ops::attention::{Attention, AttentionGrad};
use bessemer_ir::ops::conv::{self, Conv2d};
use bessemer_ir::ops::conv_then_depthwise::Activation;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::{self, Op};
use bessemer_ir::{DType, Shape, TensorType};

/// A product alone.
///
/// # Errors
/// Why it has no kernel.
pub(super) fn lower(op: &Op, types: &[&TensorType]) -> Result<Lowered, Unsupported> {
    let mut lowered = Lowered::named("");
    let inputs: Vec<Place> = (0..types.len()).map(Place::Input).collect();
    lowered.contract(op, types, &inputs, ProductTarget::F32(Some(Place::Output(0))))?;
    Ok(lowered)
}

/// In what form the result of a product is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductTarget {
    /// As `f32` in this memory, or in scratch memory, where that of a convolution is of the type of its operands.
    F32(Option<Place>),
    /// Rounded to the type of the operands, in this memory or in scratch memory.
    Rounded(Option<Place>),
}

/// From the axes of weights, `[KH, KW, C / groups, O]`, to those that cuDNN wants, and back.
const TO_CUDNN: [usize; 4] = [3, 0, 1, 2];
const FROM_CUDNN: [usize; 4] = [1, 2, 3, 0];
const AS_IT_IS: [usize; 4] = [0, 1, 2, 3];

impl Lowered {
    /// Steps of a product: where its result lies, and its type.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn contract(
        &mut self,
        op: &Op,
        types: &[&TensorType],
        inputs: &[Place],
        target: ProductTarget,
    ) -> Result<(Place, DType), Unsupported> {
        self.flops = op.rule().contraction_flops(types);
        if let Op::Limited(limited) = op {
            // Items behind the last one may hold anything.
            let images = if matches!(*limited.op, Op::Conv2dWeightGrad(_)) { 2 } else { 1 };
            let mut operands = inputs[..2].to_vec();
            for (place, ty) in operands.iter_mut().zip(types).take(images) {
                let first = self.scratch(ty.bytes());
                let items = ty.shape[0];
                let kernel = first_items(ty.dtype, items, ty.shape.elements() / items.max(1));
                self.launch(kernel, [*place, inputs[2], first]);
                *place = first;
            }
            return self.contract(&limited.op, &types[..2], &operands, target);
        }
        if let Op::ConvWithPrologue(prologue) = op {
            let x = self.scratch(types[0].bytes());
            let region = scaled(&types[0].shape, &types[2].shape, prologue.relu);
            region::launch(self, &region, &[DType::F32; 3], &[inputs[0], inputs[2], inputs[3]], &[x])?;
            return self.contract(&prologue.op, &types[..2], &[x, inputs[1]], target);
        }
        if let Op::ConvThenDepthwise(chain) = op {
            let between = chain.between(types)?;
            let [product, between_at] = [0, 1].map(|_| self.scratch(between.bytes()));
            let first = Op::Conv2d(chain.first);
            self.contract(&first, &types[..2], &inputs[..2], ProductTarget::F32(Some(product)))?;
            let region = activated(&between.shape, chain.activation);
            region::launch(self, &region, &[DType::F32; 2], &[product, inputs[3]], &[between_at])?;
            let depthwise = Op::Conv2d(chain.depthwise);
            let result = self.contract(&depthwise, &[&between, types[2]], &[between_at, inputs[2]], target)?;
            self.flops = op.rule().contraction_flops(types);
            return Ok(result);
        }
        let (a, b) = (&types[0].shape, &types[1].shape);
        match op.product().ok_or(Unsupported::NoKernel)? {
            ops::Product::Matmul(matmul) => self.matmul(matmul, types, inputs, target),
            ops::Product::Conv2d(conv) => {
                self.convolve(Pass::Forward, conv, &conv.geometry(a, b)?, types[0].dtype, inputs, target)
            }
            ops::Product::Conv2dDataGrad(grad) => {
                self.convolve(Pass::DataGradient, &grad.conv, &grad.geometry(a, b)?, types[0].dtype, inputs, target)
            }
            ops::Product::Conv2dWeightGrad(grad) => {
                self.convolve(Pass::WeightGradient, &grad.conv, &grad.geometry(a, b)?, types[0].dtype, inputs, target)
            }
        }
    }

    pub(super) fn matmul(
        &mut self,
        op: &Matmul,
        types: &[&TensorType],
        inputs: &[Place],
        target: ProductTarget,
    ) -> Result<(Place, DType), Unsupported> {
        self.name = "matmul by cuBLASLt".to_owned();
        let of = op.geometry(&types[0].shape, &types[1].shape)?;
        let (place, output) = target.memory(types[0].dtype);
        let y = place.unwrap_or_else(|| self.scratch_of(output, of.batch * of.m * of.n));
        let product = Product {
            batch: of.batch,
            m: of.m,
            n: of.n,
            k: of.k,
            x_transposed: op.trans_a,
            w_transposed: op.trans_b,
            inputs: types[0].dtype,
            output,
            tf32: false,
        };
        self.steps.push(Step::Product { product, x: inputs[0], w: inputs[1], y, epilogue: Epilogue::Nothing });
        Ok((y, output))
    }

    /// One pass of a convolution of operands of type `ty`. cuDNN's result is of that type too, and is converted where `f32` is
    /// wanted of 16 bits. Padding that differs before and behind is made of zeros in memory.
    fn convolve(
        &mut self,
        pass: Pass,
        conv: &Conv2d,
        of: &conv::Geometry,
        ty: DType,
        inputs: &[Place],
        target: ProductTarget,
    ) -> Result<(Place, DType), Unsupported> {
        self.name = "convolution by cuDNN".to_owned();
        let (place, of_type) = target.memory(ty);
        let wanted = place.map(|place| (place, of_type));
        let typed = |shape: Shape| TensorType::new(ty, shape);
        let (x_type, w_type) = (typed(of.x_shape()), typed(of.w_shape()));
        let is_even = conv.pad.iter().all(|[low, high]| low == high);
        let low = conv.pad.map(|[low, _]| low);
        let around = if is_even { [0; 2] } else { conv.pad.map(|[low, high]| low + high) };
        let input = [of.batch, of.height.input + around[0], of.width.input + around[1], of.channels];
        let geometry =
            Geometry { stride: conv.stride, padding: if is_even { low } else { [0; 2] }, dilation: conv.dilation };
        let kernel = [of.height.kernel, of.width.kernel];
        let convolution = Convolution { input, filters: of.out_channels, kernel, geometry, groups: of.groups };
        let krsc = typed(convolution.weights().into());
        let padded = |this: &mut Lowered, x: Place| if is_even { x } else { this.padded(x, &x_type, input, low) };
        let (result, perm) = match pass {
            Pass::Forward => (typed(of.y_shape()), AS_IT_IS),
            Pass::DataGradient => (typed(input.into()), AS_IT_IS),
            Pass::WeightGradient => (krsc, FROM_CUDNN),
        };
        let is_final = perm == AS_IT_IS && (is_even || pass != Pass::DataGradient);
        let at_once = wanted.filter(|(_, wanted)| is_final && *wanted == ty).map(|(place, _)| place);
        let made = at_once.unwrap_or_else(|| self.scratch(result.bytes()));
        let [x, w, y] = match pass {
            Pass::Forward => {
                let x = padded(self, inputs[0]);
                [x, self.permute(inputs[1], &w_type, &TO_CUDNN), made]
            }
            Pass::DataGradient => [made, self.permute(inputs[1], &w_type, &TO_CUDNN), inputs[0]],
            Pass::WeightGradient => [padded(self, inputs[0]), made, inputs[1]],
        };
        self.steps.push(Step::Convolution { convolution, pass, ty, x, w, y });
        if is_final && (at_once.is_some() || wanted.is_none()) {
            return Ok((made, ty));
        }
        let elements = if pass == Pass::DataGradient { x_type.shape.elements() } else { result.shape.elements() };
        let (to, to_type) = wanted.unwrap_or_else(|| (self.scratch_of(ty, elements), ty));
        match pass {
            Pass::DataGradient if !is_even => {
                self.unpadded(made, &result, low, to, &TensorType::new(to_type, of.x_shape()));
            }
            _ => self.permute_into(made, &result, &perm, to, to_type),
        }
        Ok((to, to_type))
    }
}

impl ProductTarget {
    /// Where the result of a product of operands of type `ty` is to lie, and its type.
    fn memory(self, ty: DType) -> (Option<Place>, DType) {
        match self {
            ProductTarget::F32(place) => (place, DType::F32),
            ProductTarget::Rounded(place) => (place, ty),
        }
    }
}

/// `f(x * scale + shift)` by columns, `f` being ReLU or nothing.
fn scaled(shape: &Shape, scales: &Shape, relu: bool) -> Fusion {
    let by_column = IndexMap { row_div: 1, row_mod: 1, by_col: true };
    let images = scales.rows();
    let by_image = IndexMap { row_div: shape.rows() / images.max(1), row_mod: images, by_col: true };
    let mut program = vec![
        Instr::Load(0),
        Instr::Load(1),
        Instr::Binary(BinaryKind::Mul, 0, 1),
        Instr::Load(2),
        Instr::Binary(BinaryKind::Add, 2, 3),
    ];
    if relu {
        program.push(Instr::Unary(UnaryKind::Relu, 4));
    }
    let reg = program.len() as u16 - 1;
    let rows = shape.rows();
    Fusion {
        producer: None,
        rows,
        cols: shape.cols(),
        loads: vec![IndexMap::full(rows), if images > 1 { by_image } else { by_column }, by_column],
        program,
        outputs: vec![FusionOutput::Store { reg, ty: TensorType::f32(shape.clone()) }],
    }
}

/// `f(x + bias)` by columns.
fn activated(shape: &Shape, activation: Activation) -> Fusion {
    let mut program = vec![Instr::Load(0), Instr::Load(1), Instr::Binary(BinaryKind::Add, 0, 1)];
    match activation {
        Activation::None => (),
        Activation::Relu => program.push(Instr::Unary(UnaryKind::Relu, 2)),
        Activation::Swish => {
            program.extend([Instr::Unary(UnaryKind::Sigmoid, 2), Instr::Binary(BinaryKind::Mul, 2, 3)]);
        }
    }
    let (reg, rows) = (program.len() as u16 - 1, shape.rows());
    Fusion {
        producer: None,
        rows,
        cols: shape.cols(),
        loads: vec![IndexMap::full(rows), IndexMap { row_div: 1, row_mod: 1, by_col: true }],
        program,
        outputs: vec![FusionOutput::Store { reg, ty: TensorType::f32(shape.clone()) }],
    }
}

/// Whether an attention is made of products of matrices.
pub(crate) fn is_attention_of_products(of: &Attention, types: &[&TensorType]) -> bool {
    attention_operands(of, types).ok().and_then(tensor_cores::Kernels::new).is_none()
}

fn attention_operands<'a>(
    attention: &'a Attention,
    types: &[&TensorType],
) -> Result<attention::Operands<'a>, Unsupported> {
    let sizes = attention.geometry(&types[0].shape, &types[1].shape)?;
    Ok(attention::Operands { attention, sizes, ty: types[0].dtype })
}

/// Inputs of the node by number, then these places, then the counter, the last input, where there is one.
fn operands(of: &Attention, inputs: &[usize], then: &[Place], counter: usize) -> Vec<Place> {
    let inputs = inputs.iter().map(|&input| Place::Input(input)).chain(then.iter().copied());
    inputs.chain(of.dropout.map(|_| Place::Input(counter))).collect()
}

/// # Errors
/// There are too many probabilities.
pub(super) fn attention(of: &Attention, types: &[&TensorType]) -> Result<Lowered, Unsupported> {
    let own = attention_operands(of, types)?;
    let (flops, counter) = (of.product_flops(types), types.len() - 1);
    let Some(kernels) = tensor_cores::Kernels::new(own) else {
        return Ok(Lowered { flops, ..ByProducts::new(own)?.forward(counter)? });
    };
    let mut lowered = Lowered { flops, ..Lowered::named("attention") };
    let outputs = [Place::Output(0), Place::Output(1)];
    lowered.launch(kernels.forward(), operands(of, &[0, 1, 2, 3], &outputs, counter));
    Ok(lowered)
}

/// # Errors
/// There are too many probabilities.
pub(super) fn attention_grad(of: &AttentionGrad, types: &[&TensorType]) -> Result<Lowered, Unsupported> {
    let (attention, own) = (&of.attention, attention_operands(&of.attention, types)?);
    let (flops, counter) = (of.product_flops(types), types.len() - 1);
    let Some(kernels) = tensor_cores::Kernels::new(own) else {
        return Ok(Lowered { flops, ..ByProducts::new(own)?.gradient(counter)? });
    };
    let mut lowered = Lowered { flops, ..Lowered::named("gradient of attention") };
    let [dq, dk, dv] = [0, 1, 2].map(Place::Output);
    let means = lowered.scratch_of(DType::F32, own.sizes.row_shape().elements());
    let rounded = kernels.rounds_gradient().then(|| lowered.scratch_of(own.ty, own.sizes.q_shape().elements()));
    let to: Vec<Place> = [dq, means].into_iter().chain(rounded).collect();
    lowered.launch(kernels.of_queries(), operands(attention, &[0, 1, 2, 3, 4, 5, 6], &to, counter));
    let dy = rounded.unwrap_or(Place::Input(6));
    let of_keys = operands(attention, &[0, 1, 2, 3, 5], &[means, dy, dk, dv], counter);
    lowered.launch(kernels.of_keys(), of_keys);
    Ok(lowered)
}

/// An attention as products of `f32` matrices, one of each head of each batch item, with its probabilities in memory.
struct ByProducts<'a> {
    own: attention::Operands<'a>,
    rows: rows::Kernels<'a>,
    /// Of all heads: queries, keys, and scores.
    types: [TensorType; 3],
}

impl<'a> ByProducts<'a> {
    /// # Errors
    /// There are too many probabilities.
    fn new(own: attention::Operands<'a>) -> Result<Self, Unsupported> {
        let (sizes, rows) = (own.sizes, rows::Kernels(own));
        let lists = sizes.batch * sizes.heads;
        let matrices = |rows, columns| TensorType::f32([lists, rows, columns]);
        let types = [
            matrices(sizes.queries, sizes.depth),
            matrices(sizes.keys, sizes.depth),
            matrices(sizes.queries, sizes.keys),
        ];
        match rows.elements() {
            elements if elements >= MOST_ELEMENTS => Err(Unsupported::Elements { elements }),
            _ => Ok(ByProducts { own, rows, types }),
        }
    }

    /// `[B, positions, heads, D]`, as operands and results lie.
    fn shape(&self, positions: usize) -> [usize; 4] {
        [self.own.sizes.batch, positions, self.own.sizes.heads, self.own.sizes.depth]
    }

    /// Each head of an operand as a matrix of its own.
    fn by_heads(&self, lowered: &mut Lowered, from: Place, ty: DType, positions: usize) -> Place {
        let to = lowered.scratch_of(DType::F32, self.shape(positions).iter().product());
        lowered.permute_into(from, &TensorType::new(ty, self.shape(positions)), &SWAPPED, to, DType::F32);
        to
    }

    /// Matrices of the heads as a result.
    fn by_positions(&self, lowered: &mut Lowered, from: Place, to: Place, positions: usize) {
        let [batch, _, heads, depth] = self.shape(positions);
        let ty = TensorType::f32([batch, heads, positions, depth]);
        lowered.permute_into(from, &ty, &SWAPPED, to, self.own.attention.output);
    }

    /// A product of all heads, in scratch memory.
    fn product(
        &self,
        lowered: &mut Lowered,
        [trans_a, trans_b]: [bool; 2],
        (a, a_type): (Place, usize),
        (b, b_type): (Place, usize),
    ) -> Result<Place, Unsupported> {
        let types = [&self.types[a_type], &self.types[b_type]];
        let target = ProductTarget::F32(None);
        Ok(lowered.matmul(&Matmul { trans_a, trans_b }, &types, &[a, b], target)?.0)
    }

    fn counter(&self, counter: usize) -> Option<Place> {
        self.own.attention.dropout.map(|_| Place::Input(counter))
    }

    fn forward(&self, counter: usize) -> Result<Lowered, Unsupported> {
        let (mut lowered, ty, sizes) = (Lowered::default(), self.own.ty, self.own.sizes);
        let q = self.by_heads(&mut lowered, Place::Input(0), ty, sizes.queries);
        let [k, v] = [1, 2].map(|input| self.by_heads(&mut lowered, Place::Input(input), ty, sizes.keys));
        let p = self.product(&mut lowered, [false, true], (q, QUERIES), (k, KEYS))?;
        let places = [p, Place::Input(3), Place::Output(1)].into_iter().chain(self.counter(counter));
        lowered.launch(self.rows.softmax(), places.collect::<Vec<_>>());
        let y = self.product(&mut lowered, [false, false], (p, SCORES), (v, KEYS))?;
        self.by_positions(&mut lowered, y, Place::Output(0), sizes.queries);
        lowered.name = "attention by products of matrices".to_owned();
        Ok(lowered)
    }

    fn gradient(&self, counter: usize) -> Result<Lowered, Unsupported> {
        let (mut lowered, ty, sizes) = (Lowered::default(), self.own.ty, self.own.sizes);
        let q = self.by_heads(&mut lowered, Place::Input(0), ty, sizes.queries);
        let [k, v] = [1, 2].map(|input| self.by_heads(&mut lowered, Place::Input(input), ty, sizes.keys));
        let dy = self.by_heads(&mut lowered, Place::Input(6), self.own.attention.output, sizes.queries);
        let p = self.product(&mut lowered, [false, true], (q, QUERIES), (k, KEYS))?;
        let ds = self.product(&mut lowered, [false, true], (dy, QUERIES), (v, KEYS))?;
        let places = [p, Place::Input(3), Place::Input(5), ds].into_iter().chain(self.counter(counter));
        lowered.launch(self.rows.gradient(), places.collect::<Vec<_>>());
        let dq = self.product(&mut lowered, [false, false], (ds, SCORES), (k, KEYS))?;
        let dk = self.product(&mut lowered, [true, false], (ds, SCORES), (q, QUERIES))?;
        let dv = self.product(&mut lowered, [true, false], (p, SCORES), (dy, QUERIES))?;
        for (output, (from, positions)) in
            [(dq, sizes.queries), (dk, sizes.keys), (dv, sizes.keys)].into_iter().enumerate()
        {
            self.by_positions(&mut lowered, from, Place::Output(output), positions);
        }
        lowered.name = "gradient of attention by products of matrices".to_owned();
        Ok(lowered)
    }
}

/// Axes of positions and heads in each other's place.
const SWAPPED: [usize; 4] = [0, 2, 1, 3];
/// Numbers of the types of matrices.
const QUERIES: usize = 0;
const KEYS: usize = 1;
const SCORES: usize = 2;
