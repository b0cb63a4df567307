//! Products: matrices by cuBLASLt, convolutions by cuDNN.

use super::{Lowered, Place, Step, Unsupported, region};
use crate::cublaslt::{Epilogue, Product};
use crate::cudnn::{Convolution, Fusion as ConvolutionFusion, Geometry, Pass};
use crate::kernels::depthwise::{Depthwise, Parts};
use crate::kernels::reduction::reduce;
use bessemer_ir::ops::conv::{self, Conv2d, Filter};
use bessemer_ir::ops::conv_then_depthwise::Activation;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::{self, Op};
use bessemer_ir::{DType, Shape, TensorType};

/// A product alone.
///
/// # Errors
/// Why it has no kernel.
pub(super) fn lower(op: &Op, types: &[&TensorType]) -> Result<Lowered, Unsupported> {
    let mut lowered = Lowered::named("");
    let inputs: Vec<Place> = (0..types.len()).map(Place::Input).collect();
    let output = Some(Place::Output(0));
    let is_rounded = matches!(op.product(), Some(ops::Product::Conv2dWeightGrad(grad)) if grad.output != DType::F32);
    let target = if is_rounded { ProductTarget::Rounded(output) } else { ProductTarget::F32(output) };
    lowered.contract(op, types, &inputs, target)?;
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

/// What runs a convolution, in words.
pub(super) const BY_CUDNN: &str = "convolution by cuDNN";

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
        if let Some(depthwise) = Depthwise::new(of, ty) {
            return Ok(self.convolve_depthwise(pass, &depthwise, of, inputs, target));
        }
        self.name = BY_CUDNN.to_owned();
        let (place, of_type) = target.memory(ty);
        let wanted = place.map(|place| (place, of_type));
        let typed = |shape: Shape| TensorType::new(ty, shape);
        let described = Described::new(conv, of);
        let Described { convolution, low, is_even } = described;
        let (result, perm) = match pass {
            Pass::Forward => (typed(of.y_shape()), AS_IT_IS),
            Pass::DataGradient => (typed(convolution.input.into()), AS_IT_IS),
            Pass::WeightGradient => {
                let perm = if conv.filter == Filter::Hwio { Filter::TO_HWIO } else { AS_IT_IS };
                (typed(convolution.weights().into()), perm)
            }
        };
        let is_final = perm == AS_IT_IS && (is_even || pass != Pass::DataGradient);
        let at_once = wanted.filter(|(_, wanted)| is_final && *wanted == ty).map(|(place, _)| place);
        let made = at_once.unwrap_or_else(|| self.scratch(result.bytes()));
        let [a, b] = self.operands(pass, &described, of, ty, inputs);
        let fusion = ConvolutionFusion::Plain(pass);
        self.steps.push(Step::Convolution { convolution, fusion, ty, tensors: vec![a, b, made] });
        if is_final && (at_once.is_some() || wanted.is_none()) {
            return Ok((made, ty));
        }
        let elements = if pass == Pass::DataGradient { of.x_shape().elements() } else { result.shape.elements() };
        let (to, to_type) = wanted.unwrap_or_else(|| (self.scratch_of(ty, elements), ty));
        match pass {
            Pass::DataGradient if !is_even => {
                self.unpadded(made, &result, low, to, &TensorType::new(to_type, of.x_shape()));
            }
            _ => self.permute_into(made, &result, &perm, to, to_type),
        }
        Ok((to, to_type))
    }

    /// One pass of a depthwise convolution. As by cuDNN, a result that is not kept is of the type of the operands.
    fn convolve_depthwise(
        &mut self,
        pass: Pass,
        depthwise: &Depthwise<'_>,
        of: &conv::Geometry,
        inputs: &[Place],
        target: ProductTarget,
    ) -> (Place, DType) {
        self.name = "depthwise convolution".to_owned();
        let ty = depthwise.ty();
        let (place, wanted) = target.memory(ty);
        let to = if place.is_some() { wanted } else { ty };
        let shape = match pass {
            Pass::Forward => of.y_shape(),
            Pass::DataGradient => of.x_shape(),
            Pass::WeightGradient => of.w_shape(),
        };
        let result = place.unwrap_or_else(|| self.scratch_of(to, shape.elements()));
        match pass {
            Pass::Forward => self.launch(depthwise.forward(to), [inputs[0], inputs[1], result]),
            Pass::DataGradient => self.launch(depthwise.data_gradient(to), [inputs[0], inputs[1], result]),
            Pass::WeightGradient => {
                let Parts { kernel, parts } = depthwise.weight_gradient();
                let of_parts = self.scratch_of(DType::F32, parts * shape.elements());
                self.launch(kernel, [inputs[0], inputs[1], of_parts]);
                let sum = if to == DType::F32 { result } else { self.scratch_of(DType::F32, shape.elements()) };
                let all = Shape::from([parts, shape.elements()]);
                self.reduce(reduce(ReduceKind::Sum, &all, &[0]), of_parts, sum);
                if to != DType::F32 {
                    self.permute_into(sum, &TensorType::new(DType::F32, shape), &AS_IT_IS, result, to);
                }
            }
        }
        (result, to)
    }

    /// The operands of a pass in the order of its graph, as cuDNN wants them: weights `[O, KH, KW, C / groups]`, an input with uneven
    /// padding in memory.
    pub(super) fn operands(
        &mut self,
        pass: Pass,
        described: &Described,
        of: &conv::Geometry,
        ty: DType,
        inputs: &[Place],
    ) -> [Place; 2] {
        let Described { convolution, low, is_even } = described;
        let (x_type, w_type) = (TensorType::new(ty, of.x_shape()), TensorType::new(ty, of.w_shape()));
        let filters = |this: &mut Lowered, w: Place| match of.filter {
            Filter::Ohwi => w,
            Filter::Hwio => this.permute(w, &w_type, &Filter::TO_OHWI),
        };
        let padded = |this: &mut Lowered, x: Place| match is_even {
            true => x,
            false => this.padded(x, &x_type, convolution.input, *low),
        };
        match pass {
            Pass::Forward => {
                let x = padded(self, inputs[0]);
                [x, filters(self, inputs[1])]
            }
            Pass::DataGradient => [filters(self, inputs[1]), inputs[0]],
            Pass::WeightGradient => [padded(self, inputs[0]), inputs[1]],
        }
    }
}

/// A convolution as cuDNN knows it.
pub(super) struct Described {
    pub(super) convolution: Convolution,
    /// Zeros before the input, down and across.
    low: [usize; 2],
    /// Whether there are as many behind it; otherwise the input is the padded one.
    pub(super) is_even: bool,
}

impl Described {
    pub(super) fn new(conv: &Conv2d, of: &conv::Geometry) -> Described {
        let is_even = conv.pad.iter().all(|[low, high]| low == high);
        let low = conv.pad.map(|[low, _]| low);
        let around = if is_even { [0; 2] } else { conv.pad.map(|[low, high]| low + high) };
        let input = [of.batch, of.height.input + around[0], of.width.input + around[1], of.channels];
        let geometry =
            Geometry { stride: conv.stride, padding: if is_even { low } else { [0; 2] }, dilation: conv.dilation };
        let kernel = [of.height.kernel, of.width.kernel];
        let convolution = Convolution { input, filters: of.out_channels, kernel, geometry, groups: of.groups };
        Described { convolution, low, is_even }
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
