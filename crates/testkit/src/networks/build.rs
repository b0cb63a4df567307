//! How a random network is drawn: one operation after another, each on values that there are.

use super::Functions;
use crate::problem::{Draw, Input, Problem};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::collective::{AllReduce, Wire};
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::index::{Gather, OneHot, ScatterAdd};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::pool::{AvgPool2d, MaxPool2d};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::source::{Constant, Distribution, Random};
use bessemer_ir::{DType, Graph, GraphError, Role, Shape, TensorType, Value};

type Result<T> = std::result::Result<T, GraphError>;

/// Sizes of axes: one, odd ones, and those of whole vectors, tiles and cache lines.
const SIZES: [usize; 14] = [1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 24, 32, 33, 64];

/// The network of a seed.
pub(super) fn build(functions: Functions, seed: u64) -> Result<Problem> {
    let mut d = Draw::new(seed);
    let (is_trained, most) = (d.int(0, 4) != 0, if d.int(0, 9) == 0 { 50_000 } else { 6000 });
    let ranks = if is_trained { [1, 1, 2, 3][d.int(0, 3)] } else { 1 };
    let mut p = Problem::default();
    p.ranks = ranks;
    let mut build = Build { p, d, functions, is_trained, most, pool: Vec::new(), streams: 0 };
    build.network()?;
    Ok(build.p)
}

/// A network under construction.
struct Build {
    p: Problem,
    d: Draw,
    functions: Functions,
    /// Whether there are gradients; otherwise all state is fixed.
    is_trained: bool,
    /// Most elements of a tensor.
    most: usize,
    /// Values of `f32` that operations may read.
    pool: Vec<Value>,
    /// Streams of random numbers so far.
    streams: u32,
}

impl Build {
    fn network(&mut self) -> Result<()> {
        for _ in 0..self.d.int(1, 3) {
            let shape = self.shape();
            let x = self.p.input(&shape)?;
            self.pool.push(x);
        }
        for _ in 0..self.d.int(3, 24) {
            let value = self.operation()?;
            self.pool.push(value);
        }
        if self.is_trained {
            let loss = self.loss()?;
            self.step(loss)?;
        } else {
            self.p.graph.output("y", *self.pool.last().expect("there are inputs"));
        }
        for number in 0..self.d.int(0, 3) {
            let value = self.pool[self.d.int(0, self.pool.len() - 1)];
            self.p.graph.output(&format!("value {number}"), value);
        }
        Ok(())
    }

    fn size(&mut self) -> usize {
        SIZES[self.d.int(0, SIZES.len() - 1)]
    }

    /// A shape of one to four axes, mostly that of images or of rows.
    fn shape(&mut self) -> Vec<usize> {
        let rank = [1, 2, 2, 3, 3, 4, 4, 4][self.d.int(0, 7)];
        loop {
            let mut shape: Vec<usize> = (0..rank).map(|_| self.size()).collect();
            if rank == 4 {
                shape = vec![self.d.int(1, 3), self.d.int(1, 12), self.d.int(1, 12), self.size()];
            }
            if shape.iter().product::<usize>() <= self.most {
                return shape;
            }
        }
    }

    fn dims(&self, x: Value) -> Vec<usize> {
        self.p.graph.shape(x).dims().to_vec()
    }

    /// A value that there is, more often one of the last.
    fn pick(&mut self) -> Value {
        let last = self.pool.len() - 1;
        let back = self.d.int(0, last).min(self.d.int(0, last));
        self.pool[last - back]
    }

    /// One of those with so many axes; a new one of this shape, if there is none.
    fn pick_of_rank(&mut self, rank: usize, new: [usize; 4]) -> Result<Value> {
        let fitting: Vec<Value> = self.pool.iter().copied().filter(|&x| self.p.graph.shape(x).rank() == rank).collect();
        match fitting.len() {
            0 => self.p.input(&new[4 - rank..]),
            count => Ok(fitting[count - 1 - self.d.int(0, count - 1).min(self.d.int(0, count - 1))]),
        }
    }

    fn operation(&mut self) -> Result<Value> {
        loop {
            let made = match self.d.int(0, 25) {
                0 | 1 => self.unary()?,
                2..=4 => self.binary()?,
                5 | 6 => self.product()?,
                7 | 8 => self.convolution()?,
                9 => self.reduction()?,
                10 | 11 => self.norm()?,
                12 => self.softmax()?,
                13 | 14 => self.moved()?,
                15 => self.joined()?,
                16 => self.pooled()?,
                17 => self.indexed()?,
                18 => self.dropout()?,
                19 => self.attention()?,
                20 => self.rounded()?,
                21 => self.scattered()?,
                22 => self.largest()?,
                _ => self.block()?,
            };
            if let Some(value) = made.filter(|&value| self.p.graph.shape(value).elements() <= self.most) {
                return Ok(value);
            }
        }
    }

    /// A function of one number whose results stay about as large as its arguments.
    fn unary(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let kinks = if self.functions == Functions::Any { 2 } else { 0 };
        let choice = self.d.int(0, 10 + kinks);
        let g = &mut self.p.graph;
        let above_one = |g: &mut Graph| {
            let square = g.square(x)?;
            g.add_scalar(square, 1.0)
        };
        let y = match choice {
            0 => g.unary(UnaryKind::Tanh, x)?,
            1 => g.unary(UnaryKind::Sigmoid, x)?,
            2 => g.neg(x)?,
            3 => g.unary(UnaryKind::Sin, x)?,
            4 => {
                let gate = g.unary(UnaryKind::Sigmoid, x)?;
                g.mul(x, gate)?
            }
            5 => {
                let scaled = g.mul_scalar(x, std::f64::consts::FRAC_1_SQRT_2)?;
                let erf = g.unary(UnaryKind::Erf, scaled)?;
                let above = g.add_scalar(erf, 1.0)?;
                let half = g.mul_scalar(x, 0.5)?;
                g.mul(half, above)?
            }
            6 => {
                let bounded = g.unary(UnaryKind::Tanh, x)?;
                g.unary(UnaryKind::Exp, bounded)?
            }
            7 => {
                let positive = above_one(g)?;
                g.unary(UnaryKind::Log, positive)?
            }
            8 => {
                let positive = above_one(g)?;
                g.unary(UnaryKind::Sqrt, positive)?
            }
            9 => {
                let positive = above_one(g)?;
                g.rsqrt(positive)?
            }
            10 => {
                let positive = above_one(g)?;
                g.unary(UnaryKind::Recip, positive)?
            }
            11 => g.relu(x)?,
            _ => g.unary(UnaryKind::Abs, x)?,
        };
        Ok(Some(y))
    }

    /// Something that is broadcast to the shape of `x`: a parameter, a value, a sum of `x`, or a number.
    fn partner(&mut self, x: Value) -> Result<Value> {
        let shape = self.dims(x);
        match self.d.int(0, 3) {
            0 => {
                let missing = self.d.int(0, shape.len());
                let own: Vec<usize> =
                    shape[missing..].iter().map(|&size| if self.d.int(0, 3) == 0 { 1 } else { size }).collect();
                self.p.input(&own)
            }
            1 => {
                let fits = |own: &[usize]| {
                    own.len() <= shape.len()
                        && own.iter().rev().zip(shape.iter().rev()).all(|(&own, &size)| own == size || own == 1)
                };
                let fitting: Vec<Value> =
                    self.pool.iter().copied().filter(|&other| fits(self.p.graph.shape(other))).collect();
                Ok(fitting[self.d.int(0, fitting.len() - 1)])
            }
            2 if !shape.is_empty() => {
                let axes = self.axes(shape.len());
                let count: usize = axes.iter().map(|&axis| shape[axis]).product();
                let sum = self.p.graph.reduce(ReduceKind::Sum, x, &axes, true)?;
                self.p.graph.mul_scalar(sum, 1.0 / count as f64)
            }
            _ => {
                let value = [0.0, 1.0, -1.0, 0.5, 2.0, 1.0 / 3.0][self.d.int(0, 5)];
                self.p.graph.constant_like(x, value)
            }
        }
    }

    /// Some axes, at least one.
    fn axes(&mut self, rank: usize) -> Vec<usize> {
        match self.d.int(0, 3) {
            0 => vec![rank - 1],
            1 => (0..rank - 1).collect::<Vec<_>>().into_iter().chain((rank == 1).then_some(0)).collect(),
            2 => (0..rank).collect(),
            _ => {
                let chosen: Vec<usize> = (0..rank).filter(|_| self.d.flip()).collect();
                if chosen.is_empty() { vec![self.d.int(0, rank - 1)] } else { chosen }
            }
        }
    }

    fn binary(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let other = self.partner(x)?;
        let (a, b) = if self.d.flip() { (x, other) } else { (other, x) };
        let kinks = if self.functions == Functions::Any { 3 } else { 0 };
        let choice = self.d.int(0, 6 + kinks);
        let g = &mut self.p.graph;
        let y = match choice {
            0 | 1 => g.add(a, b)?,
            2 | 3 => g.sub(a, b)?,
            4 | 5 => {
                let bounded = g.unary(UnaryKind::Tanh, b)?;
                g.mul(a, bounded)?
            }
            6 => {
                let square = g.square(b)?;
                let positive = g.add_scalar(square, 1.0)?;
                g.div(a, positive)?
            }
            7 => g.binary(BinaryKind::Max, a, b)?,
            8 => g.binary(BinaryKind::Min, a, b)?,
            _ => {
                let kind = [BinaryKind::Lt, BinaryKind::Le, BinaryKind::Gt, BinaryKind::Ge][self.d.int(0, 3)];
                let g = &mut self.p.graph;
                let condition = g.binary(kind, a, b)?;
                let scaled = g.mul_scalar(a, 0.5)?;
                g.select(condition, scaled, b)?
            }
        };
        Ok(Some(y))
    }

    /// With weights, or with another value, from either side; with a bias or not.
    fn product(&mut self) -> Result<Option<Value>> {
        let [rows, inner, batch, more] = std::array::from_fn(|_| self.size());
        let rank = self.d.int(2, 3);
        let x = self.pick_of_rank(rank, [1, batch.min(8), rows, inner])?;
        let op = Matmul { trans_a: self.d.flip(), trans_b: self.d.flip() };
        let shape = self.dims(x);
        let [leading @ .., m, k] = &shape[..] else { return Ok(None) };
        let (m, k) = if op.trans_a { (*k, *m) } else { (*m, *k) };
        let leading = leading.to_vec();
        if m * more * leading.iter().product::<usize>() > self.most || k * more > self.most {
            return Ok(None);
        }
        let own = if op.trans_b { [more, k] } else { [k, more] };
        // Rows of all matrices may be multiplied by the same weights.
        let leading = if op.trans_a || self.d.flip() { &leading[..] } else { &[] };
        let w = self.p.input(&[leading, &own].concat())?;
        let y = self.p.graph.push1(op, &[x, w])?;
        let y = self.p.graph.mul_scalar(y, 1.0 / (k as f64).sqrt())?;
        self.with_bias(y).map(Some)
    }

    fn with_bias(&mut self, y: Value) -> Result<Value> {
        if self.d.flip() {
            return Ok(y);
        }
        let columns = self.p.graph.shape(y).cols();
        let bias = self.p.input(&[columns])?;
        self.p.graph.add(y, bias)
    }

    fn images(&mut self) -> Result<Value> {
        let new = [self.d.int(1, 3), self.d.int(3, 12), self.d.int(3, 12), self.size()];
        self.pick_of_rank(4, new)
    }

    /// Dense, depthwise or in groups.
    fn convolution(&mut self) -> Result<Option<Value>> {
        let x = self.images()?;
        let shape = self.dims(x);
        let (channels, size) = (shape[3], self.size());
        let kernel = [[1, 1], [1, 1], [3, 3], [3, 3], [5, 5], [2, 3]][self.d.int(0, 5)];
        let stride = [1, 1, 2][self.d.int(0, 2)];
        let pad = kernel.map(|k| if self.d.flip() { [k / 2; 2] } else { [0, k - 1] });
        let dilation = if self.d.int(0, 5) == 0 { 2 } else { 1 };
        let groups = match self.d.int(0, 3) {
            0 => channels,
            1 if channels.is_multiple_of(2) => 2,
            _ => 1,
        };
        let out = if groups == 1 { size } else { channels };
        let fits = (0..2).all(|axis| shape[1 + axis] + pad[axis][0] + pad[axis][1] > (kernel[axis] - 1) * dilation);
        if !fits
            || channels / groups * out * kernel[0] * kernel[1] > self.most
            || shape[..3].iter().product::<usize>() * out > self.most
        {
            return Ok(None);
        }
        let w = self.p.input(&[kernel[0], kernel[1], channels / groups, out])?;
        let conv = Conv2d { dilation: [dilation; 2], groups, ..Conv2d::new([stride; 2], pad) };
        let y = self.p.graph.push1(conv, &[x, w])?;
        let y = self.p.graph.mul_scalar(y, 1.0 / ((channels / groups * kernel[0] * kernel[1]) as f64).sqrt())?;
        self.with_bias(y).map(Some)
    }

    fn reduction(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.dims(x);
        if shape.is_empty() {
            return Ok(None);
        }
        let axes = self.axes(shape.len());
        let kept = self.d.flip();
        if self.functions == Functions::Any && self.d.int(0, 2) == 0 {
            let kind = [ReduceKind::Max, ReduceKind::Min][self.d.int(0, 1)];
            return self.p.graph.reduce(kind, x, &axes, kept).map(Some);
        }
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        let sum = self.p.graph.reduce(ReduceKind::Sum, x, &axes, kept)?;
        self.p.graph.mul_scalar(sum, 1.0 / (count as f64).sqrt()).map(Some)
    }

    fn norm(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let rank = self.dims(x).len();
        if rank < 2 {
            return Ok(None);
        }
        let axes: Vec<usize> = if self.d.flip() { (0..rank - 1).collect() } else { vec![rank - 1] };
        self.normalised(x, &axes).map(Some)
    }

    /// Batch norm, by the statistics of the batch or by fixed ones, or layer norm; with running statistics or not.
    fn normalised(&mut self, x: Value, axes: &[usize]) -> Result<Value> {
        let mut kept = self.dims(x);
        axes.iter().for_each(|&axis| kept[axis] = 1);
        let (mean, variance) = if !self.is_trained && !axes.contains(&(kept.len() - 1)) {
            let ty = TensorType::f32([kept[axes.len()]]);
            let (mean, variance) = (self.p.state(&ty)?, self.p.state(&ty)?);
            (mean, self.p.graph.square(variance)?)
        } else {
            let (mean, variance) = self.p.graph.moments(x, axes)?;
            if self.d.flip() { (mean, variance) } else { (self.over_ranks(mean)?, self.over_ranks(variance)?) }
        };
        if self.is_trained && self.d.int(0, 2) == 0 {
            let ty = self.p.graph.ty(mean).clone();
            let running = self.p.state(&ty)?;
            let g = &mut self.p.graph;
            let old = g.mul_scalar(running, 0.75)?;
            let new = g.mul_scalar(mean, 0.25)?;
            let next = g.add(old, new)?;
            g.update_each_micro_batch(running, next)?;
        }
        let g = &mut self.p.graph;
        let stable = g.add_scalar(variance, 0.1)?;
        let inverse = g.rsqrt(stable)?;
        let (mean, inverse) = (g.reshape(mean, kept.clone())?, g.reshape(inverse, kept)?);
        let centred = g.sub(x, mean)?;
        let columns = g.shape(x).cols();
        let (gamma, beta) = (self.p.input(&[columns])?, self.p.input(&[columns])?);
        let g = &mut self.p.graph;
        let y = if self.d.flip() {
            let scaled = g.mul(centred, inverse)?;
            g.mul(scaled, gamma)?
        } else {
            let scale = g.mul(inverse, gamma)?;
            g.mul(centred, scale)?
        };
        g.add(y, beta)
    }

    /// The mean over ranks.
    fn over_ranks(&mut self, x: Value) -> Result<Value> {
        let ranks = self.p.ranks;
        if ranks == 1 {
            return Ok(x);
        }
        let sum = self.p.graph.push1(AllReduce { ranks, wire: Wire::F32 }, &[x])?;
        self.p.graph.mul_scalar(sum, 1.0 / ranks as f64)
    }

    fn activation(&mut self, x: Value) -> Result<Value> {
        if self.functions == Functions::Any && self.d.flip() {
            return self.p.graph.relu(x);
        }
        let gate = self.p.graph.unary(UnaryKind::Sigmoid, x)?;
        self.p.graph.mul(x, gate)
    }

    /// Convolutions of images, each with a norm or a bias and an activation, with a gate and a shortcut or without.
    fn block(&mut self) -> Result<Option<Value>> {
        let x = self.images()?;
        let mut y = x;
        for _ in 0..self.d.int(1, 3) {
            let shape = self.dims(y);
            let channels = shape[3];
            let kernel = [1, 1, 3, 3, 5][self.d.int(0, 4)];
            let is_depthwise = self.d.int(0, 2) == 0;
            let out = if is_depthwise { channels } else { self.size() };
            let (groups, stride) = (if is_depthwise { channels } else { 1 }, [1, 1, 1, 2][self.d.int(0, 3)]);
            let sizes = [kernel, kernel, channels / groups, out];
            if sizes.iter().product::<usize>() > self.most || shape[..3].iter().product::<usize>() * out > self.most {
                return Ok(None);
            }
            let w = self.p.input(&sizes)?;
            let conv = Conv2d { groups, ..Conv2d::new([stride; 2], [[(kernel - 1) / 2, kernel / 2]; 2]) };
            let scaled = 1.0 / (sizes[..3].iter().product::<usize>() as f64).sqrt();
            let w = self.p.graph.mul_scalar(w, scaled)?;
            y = self.p.graph.push1(conv, &[y, w])?;
            y = if self.d.int(0, 2) == 0 { self.with_bias(y)? } else { self.normalised(y, &[0, 1, 2])? };
            y = if self.d.int(0, 3) == 0 { y } else { self.activation(y)? };
        }
        if self.d.int(0, 2) == 0 {
            let [n, .., channels] = self.dims(y)[..] else { return Ok(None) };
            let pooled = self.p.graph.mean(y, &[1, 2])?;
            let pooled = self.p.graph.reshape(pooled, [n, 1, 1, channels])?;
            let gate = self.p.graph.unary(UnaryKind::Sigmoid, pooled)?;
            y = self.p.graph.mul(y, gate)?;
        }
        if self.dims(x) == self.dims(y) && self.d.flip() {
            y = self.p.graph.add(y, x)?;
            y = self.activation(y)?;
        }
        Ok(Some(y))
    }

    /// Numbers of 16 bits, whatever the precision.
    fn rounded(&mut self) -> Result<Option<Value>> {
        if self.functions == Functions::Smooth {
            return Ok(None);
        }
        let x = self.pick();
        let ty = [DType::Bf16, DType::F16][self.d.int(0, 1)];
        let mut y = self.p.graph.cast(x, ty)?;
        if self.d.flip() {
            y = self.p.graph.mul_scalar(y, 0.5)?;
        }
        self.p.graph.cast(y, DType::F32).map(Some)
    }

    /// Elements added to rows of a larger tensor.
    fn scattered(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.dims(x);
        if shape.len() < 2 {
            return Ok(None);
        }
        let rows = shape[0] + self.d.int(0, 5);
        let indices = self.p.indices_below(rows, &shape[..1])?;
        self.p.graph.push1(ScatterAdd::to_rows(rows), &[x, indices]).map(Some)
    }

    /// The largest elements of each row.
    fn largest(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.dims(x);
        if self.functions == Functions::Smooth || shape.is_empty() {
            return Ok(None);
        }
        let columns = shape[shape.len() - 1];
        let k = self.d.int(1, columns.min(9));
        Ok(Some(self.p.graph.top_k(x, k, 1)?[0]))
    }

    fn softmax(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.dims(x);
        if shape.is_empty() {
            return Ok(None);
        }
        if self.d.flip() {
            return self.p.graph.softmax(x).map(Some);
        }
        let log = self.p.graph.log_softmax(x)?;
        let (rows, classes) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        let labels = self.p.indices_below(classes, rows)?;
        let g = &mut self.p.graph;
        let target = g.push1(OneHot { depth: classes }, &[labels])?;
        let picked = g.mul(log, target)?;
        g.sum(picked, &[shape.len() - 1]).map(Some)
    }

    /// The same elements elsewhere, some of them, or some of them more than once.
    fn moved(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.dims(x);
        let rank = shape.len();
        if rank == 0 {
            return Ok(None);
        }
        let y = match self.d.int(0, 4) {
            0 => {
                let at = self.d.int(0, rank - 1);
                let merged = match at {
                    0 => vec![shape.iter().product()],
                    _ => [&shape[..at - 1], &[shape[at - 1] * shape[at]], &shape[at + 1..]].concat(),
                };
                self.p.graph.reshape(x, merged)?
            }
            1 if rank < 4 => {
                let at = self.d.int(0, rank - 1);
                let divisors: Vec<usize> = (1..=shape[at]).filter(|&by| shape[at].is_multiple_of(by)).collect();
                let by = divisors[self.d.int(0, divisors.len() - 1)];
                self.p.graph.reshape(x, [&shape[..at], &[by, shape[at] / by], &shape[at + 1..]].concat())?
            }
            2 => {
                let mut axes: Vec<usize> = (0..rank).collect();
                for last in (1..rank).rev() {
                    axes.swap(last, self.d.int(0, last));
                }
                self.p.graph.transpose(x, &axes)?
            }
            3 => {
                let start: Vec<usize> = shape.iter().map(|&size| self.d.int(0, (size - 1).min(3))).collect();
                let stop: Vec<usize> =
                    shape.iter().zip(&start).map(|(&size, &start)| self.d.int(start + 1, size)).collect();
                let step: Vec<usize> = shape.iter().map(|_| if self.d.int(0, 3) == 0 { 2 } else { 1 }).collect();
                self.p.graph.slice(x, &start, &stop, &step)?
            }
            _ => {
                let low: Vec<usize> = shape.iter().map(|_| self.d.int(0, 3) / 2).collect();
                let high: Vec<usize> = shape.iter().map(|_| self.d.int(0, 3) / 2).collect();
                self.p.graph.pad(x, &low, &high)?
            }
        };
        Ok(Some(y))
    }

    /// Tensors of one shape behind each other along an axis.
    fn joined(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.p.graph.shape(x).clone();
        if shape.rank() == 0 {
            return Ok(None);
        }
        let axis = self.d.int(0, shape.rank() - 1);
        let fits = |other: &Shape| {
            other.rank() == shape.rank() && (0..shape.rank()).all(|a| a == axis || other[a] == shape[a])
        };
        let fitting: Vec<Value> = self.pool.iter().copied().filter(|&other| fits(self.p.graph.shape(other))).collect();
        let parts: Vec<Value> = (0..self.d.int(2, 3)).map(|_| fitting[self.d.int(0, fitting.len() - 1)]).collect();
        if parts.iter().map(|&part| self.p.graph.shape(part).elements()).sum::<usize>() > self.most {
            return Ok(None);
        }
        self.p.graph.concat(&parts, axis).map(Some)
    }

    fn pooled(&mut self) -> Result<Option<Value>> {
        let x = self.images()?;
        let shape = self.dims(x);
        if self.d.int(0, 2) == 0 {
            let factors = [self.d.int(1, 2), self.d.int(1, 3)];
            return match shape.iter().product::<usize>() * factors[0] * factors[1] {
                elements if elements > self.most => Ok(None),
                _ => self.p.graph.upsample(x, factors).map(Some),
            };
        }
        let window = [self.d.int(1, 3).min(shape[1]), self.d.int(1, 3).min(shape[2])];
        let stride = [self.d.int(1, 2), self.d.int(1, 2)];
        let pad = window.map(|size| [self.d.int(0, size - 1), self.d.int(0, size - 1)]);
        if self.functions == Functions::Any && self.d.flip() {
            return self.p.graph.push1(MaxPool2d { window, stride, pad }, &[x]).map(Some);
        }
        let pool = AvgPool2d { window, stride, pad, count_include_pad: self.d.flip() };
        self.p.graph.push1(pool, &[x]).map(Some)
    }

    /// Rows of a value, or elements along another axis.
    fn indexed(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.dims(x);
        if shape.len() < 2 {
            return Ok(None);
        }
        let items = self.d.int(1, 20);
        let axis = if self.d.flip() { 0 } else { self.d.int(0, shape.len() - 2) };
        if shape.iter().product::<usize>() / shape[axis] * items > self.most {
            return Ok(None);
        }
        let rows = self.p.indices_below(shape[axis], &[items])?;
        self.p.graph.push1(Gather { batch: 0, axis }, &[x, rows]).map(Some)
    }

    fn dropout(&mut self) -> Result<Option<Value>> {
        let x = self.pick();
        let shape = self.p.graph.shape(x).clone();
        let step = self.p.counter()?;
        self.streams += 1;
        let uniform = Random { distribution: Distribution::Uniform, shape, seed: 3, stream: self.streams };
        let g = &mut self.p.graph;
        let uniform = g.push1(uniform, &[step])?;
        let rate = g.constant(DType::F32, [], 0.25)?;
        let kept = g.binary(BinaryKind::Ge, uniform, rate)?;
        let scaled = g.mul_scalar(x, 1.0 / 0.75)?;
        let zero = g.constant_like(scaled, 0.0)?;
        g.select(kept, scaled, zero).map(Some)
    }

    /// Of positions to themselves, or to others; with dropout or without.
    fn attention(&mut self) -> Result<Option<Value>> {
        let [length, width] = std::array::from_fn(|_| self.size());
        let x = self.pick_of_rank(3, [1, 2, length.min(32), width.min(32)])?;
        let [batch, queries, width] = self.dims(x)[..] else { return Ok(None) };
        let heads = (1..=4).rev().find(|&heads| width.is_multiple_of(heads)).unwrap_or(1);
        if queries > 64 || width / heads > 128 {
            return Ok(None);
        }
        let weights = self.p.input(&[width])?;
        let scaled = self.p.graph.mul(x, weights)?;
        let (keys, values, length) = match self.d.int(0, 2) {
            0 => {
                let length = self.size();
                if batch * length * width > self.most || batch * queries * length * heads > 10 * self.most {
                    return Ok(None);
                }
                let shape = [batch, length, width];
                (self.p.input(&shape)?, self.p.input(&shape)?, length)
            }
            1 => (scaled, x, queries),
            _ => (x, x, queries),
        };
        let bias = (0..batch * length).map(|i| Scalar((i % 7) as f64 / 7.0)).collect();
        let bias = Constant { dtype: DType::F32, shape: [batch, length].into(), data: bias };
        let mut inputs = vec![scaled, keys, values, self.p.graph.push1(bias, &[])?];
        self.streams += 1;
        let dropout = AttentionDropout { rate: Scalar(0.25), seed: 3, stream: self.streams, keeps_mask: false };
        let dropout = self.d.flip().then_some(dropout);
        if dropout.is_some() {
            inputs.push(self.p.counter()?);
        }
        let scale = Scalar(1.0 / ((width / heads) as f64).sqrt());
        let op = Attention { heads, scale, dropout, output: DType::F32 };
        self.p.graph.push1(op, &inputs).map(Some)
    }

    /// Weighted sums of the last value and of others, and the squares of all parameters.
    fn loss(&mut self) -> Result<Value> {
        let mut terms = vec![*self.pool.last().expect("there are inputs")];
        for _ in 0..self.d.int(0, 2) {
            terms.push(self.pick());
        }
        let mut loss = self.p.graph.constant(DType::F32, [], 0.0)?;
        for (number, term) in terms.into_iter().enumerate() {
            let shape = self.dims(term);
            let weights = self.p.feed(&format!("weights {number}"), DType::F32, &shape, Input::Normal)?;
            let g = &mut self.p.graph;
            let weighted = g.mul(term, weights)?;
            let axes: Vec<usize> = (0..shape.len()).collect();
            let sum = if axes.is_empty() { weighted } else { g.sum(weighted, &axes)? };
            loss = g.add(loss, sum)?;
        }
        for parameter in self.p.parameters().to_vec() {
            let g = &mut self.p.graph;
            let axes: Vec<usize> = (0..g.shape(parameter).rank()).collect();
            let square = g.square(parameter)?;
            let sum = if axes.is_empty() { square } else { g.sum(square, &axes)? };
            let decay = g.mul_scalar(sum, 0.01)?;
            loss = g.add(loss, decay)?;
        }
        self.p.graph.output("loss", loss);
        Ok(loss)
    }

    /// Gradients of this rank as outputs, or an optimizer of those of all ranks: with momentum, on sums over micro-batches, or neither.
    fn step(&mut self, loss: Value) -> Result<()> {
        let parameters = self.p.parameters().to_vec();
        let grads = gradients(&mut self.p.graph, loss, &parameters)?;
        let optimizer = self.d.int(0, 3);
        for (number, (&parameter, &grad)) in parameters.iter().zip(&grads).enumerate() {
            if optimizer == 0 || self.d.int(0, 3) == 0 {
                self.p.graph.output(&format!("gradient {number}"), grad);
            }
            let ty = self.p.graph.ty(parameter).clone();
            let direction = match optimizer {
                0 => continue,
                1 => self.over_ranks(grad)?,
                2 => {
                    let grad = self.over_ranks(grad)?;
                    let momentum = self.p.state(&ty)?;
                    let kept = self.p.graph.mul_scalar(momentum, 0.5)?;
                    let next = self.p.graph.add(kept, grad)?;
                    self.p.graph.update(momentum, next)?;
                    next
                }
                _ => {
                    let sum = self.p.state(&ty)?;
                    let kept = self.p.graph.mul_scalar(sum, 0.5)?;
                    let next = self.p.graph.add(kept, grad)?;
                    self.p.graph.update_each_micro_batch(sum, next)?;
                    self.over_ranks(next)?
                }
            };
            let change = self.p.graph.mul_scalar(direction, 0.01)?;
            let next = self.p.graph.sub(parameter, change)?;
            self.p.graph.update(parameter, next)?;
            if self.d.int(0, 5) == 0 {
                self.p.graph.output(&format!("parameter {number}"), next);
            }
            if self.d.int(0, 5) == 0 {
                self.p.graph.output(&format!("old parameter {number}"), parameter);
            }
        }
        Ok(())
    }
}

impl Problem {
    /// State that begins with normal random numbers.
    fn state(&mut self, ty: &TensorType) -> Result<Value> {
        let name = format!("state {}", self.graph.inputs().count());
        self.named(&name, Role::State, ty.clone(), Input::Normal)
    }

    /// Numbers of elements of an axis of that size, `i32`.
    fn indices_below(&mut self, size: usize, shape: &[usize]) -> Result<Value> {
        let name = format!("indices {}", self.graph.inputs().count());
        self.feed(&name, DType::I32, shape, Input::Integers { first: 0, count: size as u32 })
    }

    /// The counter of random numbers.
    fn counter(&mut self) -> Result<Value> {
        match self.graph.find_input("counter") {
            Some(counter) => Ok(counter),
            None => self.feed("counter", DType::I32, &[], Input::Integers { first: 0, count: 1 << 20 }),
        }
    }
}
