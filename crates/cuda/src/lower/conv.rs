//! Fusions on convolutions that cuDNN can do in the same pass: statistics for batch norm, factors, shifts, residuals and activations, and
//! gradients of batch norm and ReLU.

use super::algebra::{Form, Linear, Tensor, Vector, forms};
use super::product::{BY_CUDNN, Described};
use super::{Fused, Lowered, Missed, Place, Step, Unsupported, region};
use crate::cudnn::{Activation, Convolution, Fusion as ConvolutionFusion, Pass, Shifted, Support};
use crate::kernels::depthwise::Depthwise;
use bessemer_ir::ops::conv::Geometry;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::{Op, Scalar};
use bessemer_ir::{DType, TensorType};

/// A tensor that a graph has in memory beside the operands of its convolution.
enum Bound {
    /// An input of the program with all elements.
    Load(u16),
    /// `f32` numbers for each column.
    Vector(Vector),
    /// Numbers for each column that the graph gives: for an output of the fusion, or for kernels behind, by number.
    Given(Option<usize>),
}

/// What cuDNN does of a fusion.
struct Found {
    fusion: ConvolutionFusion,
    /// By name in the graph.
    bound: Vec<(&'static str, Bound)>,
    /// Number of the fusion's output that the pass writes, and the register that it holds.
    result: (usize, Reg),
    behind: Behind,
}

/// What kernels do behind the pass.
enum Behind {
    /// What depends on the product through the register that was stored.
    Program,
    /// A region over the columns, which reads what the graph gave by these names, then the program's inputs: outputs of the fusion that
    /// it gives, by number of the node.
    Columns { read: Vec<&'static str>, fusion: Fusion, gives: Vec<usize> },
}

/// Steps of a fusion on a convolution that do it, or its first part, in the convolution's pass, and the bytes of scratch memory that they
/// need.
///
/// # Errors
/// Why there are none.
pub(super) fn lower(fusion: &Fusion, producer: &Op, types: &[&TensorType]) -> Result<(Fused, usize), Missed> {
    let shapes = (&types[0].shape, &types[1].shape);
    let (pass, conv, of) = match producer {
        Op::Conv2d(conv) => (Pass::Forward, conv, conv.geometry(shapes.0, shapes.1)),
        Op::Conv2dDataGrad(grad) => (Pass::DataGradient, &grad.conv, grad.geometry(shapes.0, shapes.1)),
        _ => return Err(Missed::Geometry),
    };
    let ty = types[0].dtype;
    if !matches!(ty, DType::F16 | DType::Bf16) {
        return Err(Missed::Type);
    }
    let of = of.map_err(|_| Missed::Geometry)?;
    if Depthwise::new(&of, ty).is_some() {
        return Err(Missed::Depthwise);
    }
    let described = Described::new(conv, &of);
    if pass == Pass::DataGradient && !described.is_even {
        return Err(Missed::Geometry);
    }
    let own = fusion.producer_inputs();
    let program = Program { fusion, types: &types[own..], forms: forms(fusion, &types[own..]), ty };
    let found = program.find(pass, &described.convolution)?;
    let builder = Builder { program: &program, lowered: Lowered::default(), own };
    builder.build(pass, &of, &described, found).map_err(|_| Missed::Graph)
}

/// A fusion on a convolution whose result is of type `ty`.
struct Program<'a> {
    fusion: &'a Fusion,
    /// Of the program's inputs.
    types: &'a [&'a TensorType],
    forms: Vec<Form>,
    ty: DType,
}

impl Program<'_> {
    fn form(&self, reg: Reg) -> &Form {
        &self.forms[usize::from(reg)]
    }

    fn find(&self, pass: Pass, of: &Convolution) -> Result<Found, Missed> {
        // A vector of a matrix of one row has all elements.
        if self.fusion.rows == 1 {
            return Err(Missed::Graph);
        }
        let found = match pass {
            Pass::Forward => [self.statistics(), self.shifted()],
            Pass::DataGradient | Pass::WeightGradient => [self.norm_gradient(), self.gradient()],
        };
        let missed = if found.iter().any(Option::is_some) { Missed::Engine } else { Missed::Graph };
        let mut found = found.into_iter().flatten();
        found.find(|found| found.fusion.support(of, self.ty) != Support::Missing).ok_or(missed)
    }

    /// Outputs that have all elements in the type of the convolution: number and register.
    fn stored(&self) -> impl Iterator<Item = (usize, Reg)> {
        self.fusion.outputs.iter().enumerate().filter_map(|(index, output)| match output {
            FusionOutput::Store { reg, ty } if ty.dtype == self.ty => Some((index, *reg)),
            _ => None,
        })
    }

    /// An input with all elements that the pass may read: it is of the convolution's type.
    fn input(&self, linear: &Linear) -> Option<u16> {
        linear.as_input().filter(|&input| self.types[usize::from(input)].dtype == self.ty)
    }

    /// The result as it is, and nothing but what follows from its sums.
    fn statistics(&self) -> Option<Found> {
        let is_product = |(_, reg): &(usize, Reg)| match self.form(*reg) {
            Form::Linear(linear) => linear.offset.is_zero() && linear.single().is_some_and(is_product),
            _ => false,
        };
        let result = self.stored().find(is_product)?;
        let mut columns = Columns::new(self, 2);
        let [sum, squares] = [0, 1].map(|input| columns.push(Instr::Load(input)));
        let rows = self.fusion.rows as f64;
        let share = columns.constant(1.0 / rows);
        let mean = columns.binary(BinaryKind::Mul, sum, share);
        let of_squares = columns.binary(BinaryKind::Mul, squares, share);
        let square = columns.binary(BinaryKind::Mul, mean, mean);
        let variance = columns.binary(BinaryKind::Sub, of_squares, square);
        let variance = columns.push(Instr::Unary(UnaryKind::Relu, variance));
        let mut has_moments = false;
        for (index, output) in self.fusion.outputs.iter().enumerate().filter(|(index, _)| *index != result.0) {
            let Form::Linear(linear) = self.form(output.reg()) else { return None };
            let (factor, rest) = linear.split();
            if !rest.terms.is_empty() {
                return None;
            }
            let first = self.fusion.node_output(index);
            match output {
                FusionOutput::MeanVar { .. } => {
                    has_moments = true;
                    let own = columns.scaled(mean, &factor);
                    let own = columns.shifted(own, &rest.offset);
                    columns.give(own, first);
                    let own = columns.scaled(variance, &factor.times(&factor));
                    columns.give(own, first + 1);
                }
                FusionOutput::Sum { groups: 1, .. } => {
                    let own = columns.scaled(sum, &factor);
                    let own = columns.shifted(own, &rest.offset.times(&Vector::constant(rows)));
                    columns.give(own, first);
                }
                _ => return None,
            }
        }
        has_moments.then(|| Found {
            fusion: ConvolutionFusion::Statistics,
            bound: ["sum", "sum of squares"].map(|name| (name, Bound::Given(None))).into(),
            result,
            behind: columns.done(vec!["sum", "sum of squares"]),
        })
    }

    /// The result scaled, shifted, with a residual added, and an activation of that.
    fn shifted(&self) -> Option<Found> {
        self.stored().find_map(|result| {
            let (linear, activation) = match self.form(result.1) {
                Form::Linear(linear) => (linear, Activation::Nothing),
                Form::Relu(linear) => (linear, Activation::Relu),
                Form::Swish(linear) => (linear, Activation::Swish),
                _ => return None,
            };
            let (factor, mut rest) = linear.split();
            let shift = std::mem::take(&mut rest.offset);
            let residual = if rest.terms.is_empty() { None } else { Some(self.input(&rest)?) };
            let scale = !factor.is_one();
            let is_plain = !scale && residual.is_none() && shift.is_zero();
            if factor.is_zero() || is_plain || !region::reads_product_through(self.fusion, result.1) {
                return None;
            }
            let mut bound = vec![("shift", Bound::Vector(shift))];
            bound.extend(scale.then_some(("scale", Bound::Vector(factor))));
            bound.extend(residual.map(|residual| ("residual", Bound::Load(residual))));
            let fusion = ConvolutionFusion::Shifted(Shifted { scale, residual: residual.is_some(), activation });
            Some(Found { fusion, bound, result, behind: Behind::Program })
        })
    }

    /// The gradient of the input, with or without a residual: what is added, if anything.
    fn gradient_of(&self, linear: &Linear) -> Option<Option<u16>> {
        let (factor, rest) = linear.split();
        match rest.terms.is_empty() {
            true => (factor.is_one() && rest.offset.is_zero()).then_some(None),
            false => self.input(&rest).filter(|_| factor.is_one()).map(Some),
        }
    }

    /// The gradient behind `relu(norm(x))`, its sums and those of it times `x` less its mean.
    fn norm_gradient(&self) -> Option<Found> {
        let (index, reg) = self.stored().next()?;
        let own = self.form(reg);
        let Form::Masked { mask, value } = own else { return None };
        let residual = self.gradient_of(value)?;
        let (Tensor::Load(x), scale) = mask.single()? else { return None };
        if self.types[usize::from(x)].dtype != self.ty {
            return None;
        }
        // Sums of the gradient times `factor (x - mean)`.
        let mut sums: Vec<(usize, &Vector)> = Vec::new();
        let mut of_gradient = Vec::new();
        let mut centre: Option<Vector> = None;
        for (number, output) in self.fusion.outputs.iter().enumerate().filter(|(number, _)| *number != index) {
            let FusionOutput::Sum { reg, groups: 1, .. } = output else { return None };
            let first = self.fusion.node_output(number);
            match self.form(*reg) {
                Form::Times(gradient, linear) if **gradient == *own => {
                    let (tensor, factor) = linear.single()?;
                    let mean = linear.offset.divided_by(factor)?.negative();
                    if tensor != Tensor::Load(x) || centre.as_ref().is_some_and(|known| *known != mean) {
                        return None;
                    }
                    centre = Some(mean);
                    sums.push((first, factor));
                }
                form if form == own => of_gradient.push(first),
                _ => return None,
            }
        }
        let mean = centre?;
        // `(x - mean) scale + shift` is the mask.
        let shift = mask.offset.plus(&mean.times(scale));
        let direct = sums.iter().find(|(_, factor)| factor.is_one()).map(|(first, _)| *first);
        let dshift = of_gradient.first().copied();
        let mut columns = Columns::new(self, 2);
        let [dscale_at, dshift_at] = [0, 1].map(|input| columns.push(Instr::Load(input)));
        for (first, factor) in sums.iter().filter(|(first, _)| Some(*first) != direct) {
            let own = columns.scaled(dscale_at, factor);
            columns.give(own, *first);
        }
        for &first in of_gradient.iter().skip(1) {
            columns.give(dshift_at, first);
        }
        let mut bound = vec![
            ("x", Bound::Load(x)),
            ("mean", Bound::Vector(mean)),
            ("deviation", Bound::Vector(Vector::constant(1.0))),
            ("scale", Bound::Vector(scale.clone())),
            ("shift", Bound::Vector(shift)),
            ("dscale", Bound::Given(direct)),
            ("dshift", Bound::Given(dshift)),
        ];
        bound.extend(["dy factor", "x factor", "offset"].map(|name| (name, Bound::Given(None))));
        bound.extend(residual.map(|residual| ("residual", Bound::Load(residual))));
        let fusion = match residual {
            None => ConvolutionFusion::NormDataGradient,
            Some(_) => ConvolutionFusion::ResidualNormDataGradient,
        };
        Some(Found { fusion, bound, result: (index, reg), behind: columns.done(vec!["dscale", "dshift"]) })
    }

    /// The gradient with a residual, with that of ReLU, or with both.
    fn gradient(&self) -> Option<Found> {
        self.stored().find_map(|result| {
            let (value, mask) = match self.form(result.1) {
                Form::Linear(value) => (value, None),
                Form::Masked { mask, value } => (value, Some(self.input(mask)?)),
                _ => return None,
            };
            let residual = self.gradient_of(value)?;
            let fusion = match (residual, mask) {
                (None, None) => return None,
                (Some(_), None) => ConvolutionFusion::ResidualDataGradient,
                (None, Some(_)) => ConvolutionFusion::ReluDataGradient,
                (Some(_), Some(_)) => ConvolutionFusion::ResidualReluDataGradient,
            };
            let residual = residual.map(|residual| ("residual", Bound::Load(residual)));
            let bound = residual.into_iter().chain(mask.map(|mask| ("x", Bound::Load(mask)))).collect();
            let found = Found { fusion, bound, result, behind: Behind::Program };
            region::reads_product_through(self.fusion, result.1).then_some(found)
        })
    }
}

fn is_product((tensor, factor): (Tensor, &Vector)) -> bool {
    tensor == Tensor::Product && factor.is_one()
}

/// A region over the columns while it is written. It loads what a graph gave, then the inputs of the program.
struct Columns {
    fusion: Fusion,
    /// Inputs before those of the program.
    given: u16,
    gives: Vec<usize>,
}

impl Columns {
    fn new(program: &Program<'_>, given: u16) -> Columns {
        let of_program = program.fusion.loads.iter().map(|load| match load.by_col {
            true => IndexMap::full(1),
            false => IndexMap::SCALAR,
        });
        let fusion = Fusion {
            producer: None,
            rows: 1,
            cols: program.fusion.cols,
            loads: vec![IndexMap::full(1); usize::from(given)].into_iter().chain(of_program).collect(),
            program: Vec::new(),
            outputs: Vec::new(),
        };
        Columns { fusion, given, gives: Vec::new() }
    }

    fn push(&mut self, instr: Instr) -> Reg {
        self.fusion.program.push(instr);
        (self.fusion.program.len() - 1) as Reg
    }

    fn constant(&mut self, number: f64) -> Reg {
        self.push(Instr::Const(Scalar(number)))
    }

    fn binary(&mut self, kind: BinaryKind, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Binary(kind, a, b))
    }

    fn vector(&mut self, vector: &Vector) -> Reg {
        vector.write(&mut self.fusion.program, self.given)
    }

    fn scaled(&mut self, reg: Reg, factor: &Vector) -> Reg {
        if factor.is_one() {
            return reg;
        }
        let factor = self.vector(factor);
        self.binary(BinaryKind::Mul, reg, factor)
    }

    fn shifted(&mut self, reg: Reg, offset: &Vector) -> Reg {
        if offset.is_zero() {
            return reg;
        }
        let offset = self.vector(offset);
        self.binary(BinaryKind::Add, reg, offset)
    }

    /// Adds an output: this register, for an output of the node.
    fn give(&mut self, reg: Reg, output: usize) {
        let ty = TensorType::f32([self.fusion.cols]);
        self.fusion.outputs.push(FusionOutput::Store { reg, ty });
        self.gives.push(output);
    }

    fn done(self, read: Vec<&'static str>) -> Behind {
        Behind::Columns { read, fusion: self.fusion, gives: self.gives }
    }
}

/// Steps while they are made.
struct Builder<'a> {
    program: &'a Program<'a>,
    lowered: Lowered,
    /// Inputs of the node before those of the program.
    own: usize,
}

impl Builder<'_> {
    fn input(&self, load: u16) -> Place {
        Place::Input(self.own + usize::from(load))
    }

    fn build(
        mut self,
        pass: Pass,
        of: &Geometry,
        described: &Described,
        found: Found,
    ) -> Result<(Fused, usize), Unsupported> {
        let Found { fusion: what, bound, result: (index, register), behind } = found;
        let Program { fusion, types, ty, .. } = *self.program;
        let result = Place::Output(fusion.node_output(index));
        let (first, second) = if pass == Pass::Forward { ("x", "w") } else { ("w", "dy") };
        let inputs: Vec<Place> = (0..self.own).map(Place::Input).collect();
        let operands = self.lowered.operands(pass, described, of, ty, &inputs);
        let mut known: Vec<(&'static str, Place)> = vec![(first, operands[0]), (second, operands[1])];
        for (name, bound) in bound {
            let place = match bound {
                Bound::Load(load) => self.input(load),
                Bound::Given(Some(output)) => Place::Output(output),
                Bound::Given(None) => self.lowered.scratch_of(DType::F32, fusion.cols),
                Bound::Vector(vector) => self.vector(&vector)?,
            };
            known.push((name, place));
        }
        known.extend(["y", "dx", "dy of the norm"].map(|name| (name, result)));
        let convolution = described.convolution;
        let graph = convolution.graph(what, ty);
        let place = |name| known.iter().find(|(known, _)| *known == name).expect("each tensor of the graph").1;
        let tensors = graph.in_memory().map(|id| place(graph.get(id).name)).collect();
        self.lowered.steps.push(Step::Convolution { convolution, fusion: what, ty, tensors });
        match behind {
            Behind::Program => {
                let rest = region::behind(fusion, register, Some(index));
                if !rest.outputs.is_empty() {
                    let loads = types.iter().map(|ty| ty.dtype).chain([ty]).collect::<Vec<_>>();
                    let inputs = (0..types.len() as u16).map(|load| self.input(load)).chain([result]);
                    let inputs = inputs.collect::<Vec<_>>();
                    let others = region::others(fusion, Some(index));
                    region::launch(&mut self.lowered, &rest, &loads, &inputs, &others)?;
                }
            }
            Behind::Columns { read, fusion: columns, gives } if !gives.is_empty() => {
                let read = read.iter().map(|name| (DType::F32, place(name)));
                let own = types.iter().zip(0..).map(|(ty, load)| (ty.dtype, self.input(load)));
                let (loads, inputs): (Vec<DType>, Vec<Place>) = read.chain(own).unzip();
                let gives: Vec<Place> = gives.into_iter().map(Place::Output).collect();
                region::launch(&mut self.lowered, &columns, &loads, &inputs, &gives)?;
            }
            Behind::Columns { .. } => (),
        }
        let Lowered { steps, scratch, .. } = self.lowered;
        let is_expected = what.support(&convolution, ty) == Support::Precompiled;
        let apart = !fusion.loads.is_empty();
        Ok((Fused { product: BY_CUDNN, what: what.added(), steps, is_expected, apart }, scratch))
    }

    /// Where a vector lies in `f32`: an input, or scratch memory that a kernel writes.
    fn vector(&mut self, vector: &Vector) -> Result<Place, Unsupported> {
        let Program { fusion, types, .. } = *self.program;
        let is_dense = |load: u16| {
            let (map, ty) = (fusion.loads[usize::from(load)], types[usize::from(load)]);
            map.by_col && ty.dtype == DType::F32
        };
        if let Some(load) = vector.as_load().filter(|&load| is_dense(load)) {
            return Ok(self.input(load));
        }
        let mut columns = Columns::new(self.program, 0);
        let reg = columns.vector(vector);
        columns.give(reg, 0);
        let place = self.lowered.scratch_of(DType::F32, fusion.cols);
        let loads: Vec<DType> = types.iter().map(|ty| ty.dtype).collect();
        let inputs: Vec<Place> = (0..types.len() as u16).map(|load| self.input(load)).collect();
        region::launch(&mut self.lowered, &columns.fusion, &loads, &inputs, &[place])?;
        Ok(place)
    }
}
