//! Operations that read or give positions.

use super::detection::STAYS_F32;
use super::{Cost, FusedOp, GradArgs, Gradient, MixedPrecision, OpError, OpRule, RecomputeCost};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

/// An index as a row number.
///
/// # Panics
/// If it is outside `0..rows`.
fn row(index: f64, rows: usize) -> usize {
    assert!((0.0..rows as f64).contains(&index), "index {index} is outside 0..{rows}");
    index as usize
}

fn verified(geometry: Result<IndexGeometry, OpError>) -> IndexGeometry {
    geometry.expect("the node was accepted with these shapes")
}

/// Sizes of [`Gather`] and [`ScatterAdd`]: tables `[batches, outer, rows, width]`, indices `[batches, items]` and the rows they
/// choose, `[batches, outer, items, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexGeometry {
    /// Tables: the product of the leading axes that tables and indices share.
    pub batches: usize,
    /// Product of the axes of a table before that of the rows.
    pub outer: usize,
    /// Rows of a table.
    pub rows: usize,
    /// Indices for each table.
    pub items: usize,
    /// Elements of a row.
    pub width: usize,
}

impl IndexGeometry {
    /// Rows that the indices choose, of all tables.
    pub fn chosen(&self) -> usize {
        self.batches * self.outer * self.items
    }

    /// Rows of all tables.
    pub fn table_rows(&self) -> usize {
        self.batches * self.outer * self.rows
    }

    /// Position of the index that chooses row number `chosen` of all chosen ones.
    #[inline]
    pub fn index_position(&self, chosen: usize) -> usize {
        chosen / (self.outer * self.items) * self.items + chosen % self.items
    }

    /// Row number, of all tables, of row `index` of the table that row number `chosen` comes from.
    #[inline]
    pub fn table_row(&self, chosen: usize, index: usize) -> usize {
        chosen / self.items * self.rows + index
    }
}

/// As printed: nothing for rows of one table.
fn describe_axes(batch: usize, axis: usize) -> String {
    if (batch, axis) == (0, 0) { String::new() } else { format!("batch={batch}, axis={axis}") }
}

fn check_axes(batch: usize, axis: usize) -> Result<(), OpError> {
    match batch <= axis {
        true => Ok(()),
        false => Err(OpError::Attribute(format!("the axis {axis} must lie behind the {batch} batch axes"))),
    }
}

/// Elements of a table chosen by index along an axis, as NumPy's `take` with leading axes in common. Inputs: table
/// `[...B, ...O, V, ...]`, with `V` at `axis`, and indices `i32[...B, ...I]` in `0..V`, with `batch` axes `B`; output
/// `[...B, ...O, ...I, ...]`. An index outside is an error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Leading axes that table and indices share.
    pub batch: usize,
    /// Axis of the table along which elements are chosen; at least `batch`.
    pub axis: usize,
}

impl Gather {
    /// Rows of one table.
    pub const ROWS: Gather = Gather { batch: 0, axis: 0 };

    /// Sizes for operands of these shapes.
    ///
    /// # Errors
    /// What does not fit.
    pub fn geometry(&self, table: &Shape, indices: &Shape) -> Result<IndexGeometry, OpError> {
        check_axes(self.batch, self.axis)?;
        if self.axis >= table.rank() {
            return Err(OpError::NoSuchAxis { axis: self.axis, rank: table.rank() });
        }
        if indices.rank() < self.batch || indices[..self.batch] != table[..self.batch] {
            let problem = format!("the first {} axes of {table} and {indices} must be the same", self.batch);
            return Err(OpError::Sizes(problem));
        }
        Ok(IndexGeometry {
            batches: table[..self.batch].iter().product(),
            outer: table[self.batch..self.axis].iter().product(),
            rows: table[self.axis],
            items: indices[self.batch..].iter().product(),
            width: table[self.axis + 1..].iter().product(),
        })
    }
}

impl OpRule for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn attributes(&self) -> String {
        describe_axes(self.batch, self.axis)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [table, indices] = inputs else { return Err(OpError::operands("a table and indices")) };
        if table.shape.rank() == 0 || indices.dtype != DType::I32 {
            return Err(OpError::operands("a table of at least one axis and i32 indices"));
        }
        self.geometry(&table.shape, &indices.shape)?;
        let (outer, inner) = (&table.shape[..self.axis], &table.shape[self.axis + 1..]);
        Ok(vec![TensorType::new(table.dtype, [outer, &indices.shape[self.batch..], inner].concat())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; 2])) };
        let rows = g.shape(args.inputs[0])[self.axis];
        let scatter = ScatterAdd { rows, batch: self.batch, axis: self.axis };
        let dtable = args.wanted[0].then(|| g.push1(scatter, &[dy, args.inputs[1]])).transpose()?;
        Ok(Gradient::Inputs(vec![dtable, None]))
    }

    /// Only the rows asked for are read.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0, bytes: (inputs[1].bytes() + 2 * outputs[0].bytes()) as u64 }
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (table, indices) = (inputs[0], inputs[1]);
        let geometry = verified(self.geometry(&table.ty.shape, &indices.ty.shape));
        let data = (0..geometry.chosen()).flat_map(|chosen| {
            let index = row(indices.data[geometry.index_position(chosen)], geometry.rows);
            &table.data[geometry.table_row(chosen, index) * geometry.width..][..geometry.width]
        });
        vec![Tensor::new(outputs[0].clone(), data.copied().collect())]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::MOVES
    }
}

/// Adds elements to tables of zeros, along an axis: what [`Gather`] chooses is put back. Inputs: updates
/// `[...B, ...O, ...I, ...]`, with `I` from `axis` on, and indices `i32[...B, ...I]` in `0..rows`, with `batch` axes `B`; output
/// `[...B, ...O, rows, ...]`. An index outside is an error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// Size of the output along the axis.
    pub rows: usize,
    /// Leading axes that updates and indices share.
    pub batch: usize,
    /// Axis of the output along which is added; at least `batch`.
    pub axis: usize,
}

impl ScatterAdd {
    /// To rows of one table.
    pub fn to_rows(rows: usize) -> ScatterAdd {
        ScatterAdd { rows, batch: 0, axis: 0 }
    }

    /// Sizes for operands of these shapes.
    ///
    /// # Errors
    /// What does not fit.
    pub fn geometry(&self, updates: &Shape, indices: &Shape) -> Result<IndexGeometry, OpError> {
        check_axes(self.batch, self.axis)?;
        let own = indices.get(self.batch..).unwrap_or_default();
        let end = self.axis + own.len();
        let agree = indices.rank() >= self.batch
            && updates.get(..self.batch) == indices.get(..self.batch)
            && updates.get(self.axis..end) == Some(own);
        if !agree {
            let problem = match self.axis {
                0 => "the leading axes of the updates must be those of the indices".to_string(),
                axis => format!("axes 0..{} and {axis}..{end} of the updates must be those of the indices", self.batch),
            };
            return Err(OpError::Sizes(problem));
        }
        Ok(IndexGeometry {
            batches: updates[..self.batch].iter().product(),
            outer: updates[self.batch..self.axis].iter().product(),
            rows: self.rows,
            items: own.iter().product(),
            width: updates[end..].iter().product(),
        })
    }
}

impl OpRule for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn attributes(&self) -> String {
        match describe_axes(self.batch, self.axis) {
            axes if axes.is_empty() => format!("rows={}", self.rows),
            axes => format!("rows={}, {axes}", self.rows),
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [updates, indices] = inputs else { return Err(OpError::operands("updates and indices")) };
        if updates.dtype == DType::Bool || indices.dtype != DType::I32 {
            return Err(OpError::operands("updates that are numbers, and i32 indices"));
        }
        self.geometry(&updates.shape, &indices.shape)?;
        let inner = &updates.shape[self.axis + indices.shape.rank() - self.batch..];
        Ok(vec![TensorType::new(updates.dtype, [&updates.shape[..self.axis], &[self.rows], inner].concat())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; 2])) };
        let gather = Gather { batch: self.batch, axis: self.axis };
        let dupdates = args.wanted[0].then(|| g.push1(gather, &[dy, args.inputs[1]])).transpose()?;
        Ok(Gradient::Inputs(vec![dupdates, None]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (updates, indices) = (inputs[0], inputs[1]);
        let mut table = Tensor::zeros(outputs[0].clone());
        let geometry = verified(self.geometry(&updates.ty.shape, &indices.ty.shape));
        let width = geometry.width;
        for chosen in 0..geometry.chosen() {
            let index = row(indices.data[geometry.index_position(chosen)], self.rows);
            let to = geometry.table_row(chosen, index);
            for i in 0..width {
                table.data[to * width + i] += updates.data[chosen * width + i];
            }
        }
        vec![table]
    }
}

/// `i32[...]` to `f32[..., depth]`: 1 at the index and 0 elsewhere; zeros alone where the index is outside `0..depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneHot {
    /// Size of the innermost axis of the output: the number of classes.
    pub depth: usize,
}

impl OpRule for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn attributes(&self) -> String {
        format!("depth={}", self.depth)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] if x.dtype == DType::I32 => Ok(vec![TensorType::f32([x.shape.dims(), &[self.depth]].concat())]),
            _ => Err(OpError::operands("one i32 tensor")),
        }
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let at = |i: usize| inputs[0].data[i / self.depth] == (i % self.depth) as f64;
        vec![Tensor::from_fn(outputs[0].clone(), |i| f64::from(u8::from(at(i))))]
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        Some(FusedOp::OneHot)
    }

    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Arithmetic
    }
}

/// Position of the first maximum along the innermost axis, which is removed: `[..., C]` to `i32[...]`. A NaN counts as
/// the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgMax;

impl OpRule for ArgMax {
    fn name(&self) -> &'static str {
        "arg_max"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else { return Err(OpError::operands("one tensor")) };
        match x.shape.split_last() {
            Some((&cols, outer)) if cols > 0 && x.dtype != DType::Bool => Ok(vec![TensorType::new(DType::I32, outer)]),
            _ => Err(OpError::operands("a tensor of numbers with an innermost axis that is not empty")),
        }
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let first_max = |row: &[f64]| {
            let larger = |best: usize, i: usize| {
                let better = row[i] > row[best] || (row[i].is_nan() && !row[best].is_nan());
                if better { i } else { best }
            };
            (1..row.len()).fold(0, larger) as f64
        };
        let data = inputs[0].data.chunks(inputs[0].ty.shape.cols()).map(first_max).collect();
        vec![Tensor::new(outputs[0].clone(), data)]
    }
}

/// The largest elements of `f32[..., N]`, or of `f32[..., N, K]` over both innermost axes: values `f32[..., k]`, and for each of
/// these axes the positions `i32[..., k]`. In falling order, equal ones by position; NaN comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    /// How many elements are chosen.
    pub k: usize,
    /// Number of innermost axes, 1 or 2.
    pub axes: usize,
}

impl TopK {
    /// Rows of which the largest elements are chosen, and sizes of the axes: the first is 1 if there is only one.
    ///
    /// # Errors
    /// What does not fit.
    pub fn geometry(&self, x: &Shape) -> Result<(usize, [usize; 2]), OpError> {
        if !matches!(self.axes, 1 | 2) {
            return Err(OpError::Attribute(format!("axes must be 1 or 2, not {}", self.axes)));
        }
        let Some(leading) = x.rank().checked_sub(self.axes) else {
            return Err(OpError::operands(format!("a tensor of at least {} axes", self.axes)));
        };
        let sizes = if self.axes == 2 { [x[leading], x[leading + 1]] } else { [1, x[leading]] };
        let elements = sizes[0] * sizes[1];
        if self.k == 0 || self.k > elements {
            return Err(OpError::Attribute(format!("k must be in 1..={elements}, not {}", self.k)));
        }
        if elements > i32::MAX as usize {
            return Err(OpError::Sizes("there are more elements than positions of 32 bits".to_string()));
        }
        Ok((x[..leading].iter().product(), sizes))
    }
}

impl OpRule for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn attributes(&self) -> String {
        if self.axes == 1 { format!("k={}", self.k) } else { format!("k={}, axes={}", self.k, self.axes) }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else { return Err(OpError::operands("one f32 tensor")) };
        if x.dtype != DType::F32 {
            return Err(OpError::operands("one f32 tensor"));
        }
        self.geometry(&x.shape)?;
        let shape = [&x.shape[..x.shape.rank() - self.axes], &[self.k]].concat();
        let positions = TensorType::new(DType::I32, shape.clone());
        Ok([vec![TensorType::f32(shape)], vec![positions; self.axes]].concat())
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let shape = g.shape(args.inputs[0]).clone();
        let leading = shape.rank() - self.axes;
        let mut position = args.outputs[1];
        if self.axes == 2 {
            let row_len = g.constant(DType::I32, [], shape[leading + 1] as f64)?;
            let row = g.mul(position, row_len)?;
            position = g.add(row, args.outputs[2])?;
        }
        let rows = shape[leading..].iter().product();
        let dx = g.push1(ScatterAdd { rows, batch: leading, axis: leading }, &[dy, position])?;
        Ok(Gradient::Inputs(vec![Some(g.reshape(dx, shape)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let (_, [height, width]) = self.geometry(&x.ty.shape).expect("the node was accepted with this shape");
        let (mut values, mut positions) = (Vec::new(), [Vec::new(), Vec::new()]);
        for row in x.data.chunks(height * width) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            let falling =
                |&a: &usize, &b: &usize| row[b].partial_cmp(&row[a]).unwrap_or(row[a].is_nan().cmp(&row[b].is_nan()));
            order.sort_by(falling);
            for &i in &order[..self.k] {
                values.push(row[i]);
                positions[0].push((i / width) as f64);
                positions[1].push((i % width) as f64);
            }
        }
        let positions = positions.into_iter().skip(2 - self.axes);
        let data = std::iter::once(values).chain(positions);
        outputs.iter().zip(data).map(|(ty, data)| Tensor::new(ty.clone(), data)).collect()
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        STAYS_F32
    }
}
