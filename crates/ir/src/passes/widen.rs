//! Gives matrix products as many columns as libraries are fast with: the vocabulary of a language model, say, whose 30,522 words
//! begin no second row at a multiple of 16 bytes. Weights get columns of zeros, and all that is computed from the product by its
//! columns (softmax, losses, gradients) has as many more; they are masked before rows are reduced, and cut off where a tensor leaves.
//! The step computes the same.

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::Op;
use crate::ops::index::OneHot;
use crate::ops::layout::Broadcast;
use crate::ops::matmul::Matmul;
use crate::ops::pointwise::BinaryKind;
use crate::ops::reduce::Reduce;
use crate::rules::ColumnRules;
use crate::shape::Shape;
use std::collections::{HashMap, HashSet};

/// # Errors
/// Only if the graph was malformed.
pub fn widen(graph: &Graph, rules: &ColumnRules) -> Result<Graph, GraphError> {
    let mut pass = Widening {
        graph,
        rules,
        rewriter: Rewriter::new(graph),
        wide: HashMap::new(),
        cut: HashSet::new(),
        padded: HashMap::new(),
        masked: HashMap::new(),
        masks: HashMap::new(),
        products: 0,
        copies: 0,
    };
    for id in graph.ids() {
        if !pass.widened(id)? {
            graph.node(id).inputs.iter().try_for_each(|&input| pass.cut(input))?;
            pass.rewriter.copy(id)?;
        }
    }
    graph.roots().try_for_each(|root| pass.cut(root))?;
    // A copy costs about what a product gains.
    if pass.products > pass.copies { pass.rewriter.finish() } else { Ok(graph.clone()) }
}

struct Widening<'a> {
    graph: &'a Graph,
    rules: &'a ColumnRules,
    rewriter: Rewriter<'a>,
    /// Matrices `[m, n]` that have more columns in the new graph: what they are there. The further columns may hold anything.
    wide: HashMap<Value, Value>,
    /// Those of them that the new graph has without further columns too.
    cut: HashSet<Value>,
    /// Values with zeros behind the last element of an axis.
    padded: HashMap<(Value, usize), Value>,
    /// Wide matrices whose further columns hold a number, by its bits.
    masked: HashMap<(Value, u64), Value>,
    /// For matrices of so many columns in the source whether a column is one of them.
    masks: HashMap<usize, Value>,
    /// Products that have other columns.
    products: usize,
    /// Matrices that are copied to lose their further columns.
    copies: usize,
}

impl<'a> Widening<'a> {
    /// The columns that a matrix of this shape gets.
    fn columns(&self, shape: &Shape) -> usize {
        shape.cols().next_multiple_of(self.rules.multiple)
    }

    /// Computes a node with further columns; `false` where it is to be copied.
    fn widened(&mut self, id: NodeId) -> Result<bool, GraphError> {
        match &self.graph.node(id).op {
            Op::Matmul(matmul) => self.product(id, *matmul),
            Op::Reduce(reduce) => self.reduction(id, reduce),
            Op::Softmax(_) | Op::LogSoftmax(_) => self.softmax(id),
            op if op.is_pointwise() => self.pointwise(id),
            _ => Ok(false),
        }
    }

    fn product(&mut self, id: NodeId, matmul: Matmul) -> Result<bool, GraphError> {
        let inputs = [0, 1].map(|input| self.graph.node(id).inputs[input]);
        let is_matrix = |&value: &Value| self.graph.shape(value).rank() == 2;
        if !inputs.iter().all(is_matrix) || self.wide.contains_key(&inputs[1]) {
            return Ok(false);
        }
        if self.wide.contains_key(&inputs[0]) {
            self.product_of_wide(id, matmul, inputs)?;
        } else if !self.product_to_wide(id, matmul, inputs)? {
            return Ok(false);
        }
        self.products += 1;
        Ok(true)
    }

    fn product_of_wide(&mut self, id: NodeId, matmul: Matmul, [a, b]: [Value; 2]) -> Result<(), GraphError> {
        let (graph, own) = (self.graph, Value { node: id, output: 0 });
        let columns = self.columns(graph.shape(a));
        // Zeros are not needed where the columns are rows of the result, but others may need them.
        let wide = self.masked(id, a, 0.0)?;
        let result = if matmul.trans_a {
            let b = self.rewriter.get(b);
            self.rewriter.at(id, |g| {
                let rows = g.push1(matmul, &[wide, b])?;
                g.slice(rows, &[0, 0], graph.shape(own), &[1, 1])
            })?
        } else {
            let b = self.padded(id, b, usize::from(matmul.trans_b), columns)?;
            self.rewriter.at(id, |g| g.push1(matmul, &[wide, b]))?
        };
        self.rewriter.set(own, result);
        Ok(())
    }

    fn product_to_wide(&mut self, id: NodeId, matmul: Matmul, [a, b]: [Value; 2]) -> Result<bool, GraphError> {
        let own = Value { node: id, output: 0 };
        let shape = self.graph.shape(own);
        let columns = self.columns(shape);
        if shape.cols() < self.rules.least || shape.cols() == columns {
            return Ok(false);
        }
        let a = self.rewriter.get(a);
        let b = self.padded(id, b, usize::from(!matmul.trans_b), columns)?;
        let result = self.rewriter.at(id, |g| g.push1(matmul, &[a, b]))?;
        self.wide.insert(own, result);
        Ok(true)
    }

    fn pointwise(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let (graph, own) = (self.graph, Value { node: id, output: 0 });
        let (node, shape) = (graph.node(id), graph.shape(own));
        if !node.inputs.iter().any(|input| self.wide.contains_key(input) && graph.shape(*input) == shape) {
            return Ok(false);
        }
        if !node.inputs.iter().all(|&input| self.has_wide_form(input, shape)) {
            return Ok(false);
        }
        let inputs =
            node.inputs.iter().map(|&input| self.wide_form(id, input, shape)).collect::<Result<Vec<_>, _>>()?;
        let result = self.rewriter.at(id, |g| g.push1(node.op.clone(), &inputs))?;
        self.wide.insert(own, result);
        Ok(true)
    }

    /// Whether an operand of a matrix of this shape can have further columns, or needs none, without a copy of a matrix.
    fn has_wide_form(&self, value: Value, shape: &Shape) -> bool {
        let (own, op) = (self.graph.shape(value), &self.graph.node(value.node).op);
        let is_made = match op {
            Op::OneHot(_) => true,
            Op::Broadcast(_) => is_of_rows(self.graph.shape(self.graph.node(value.node).inputs[0])),
            Op::Constant(constant) => constant.uniform().is_some(),
            _ => false,
        };
        self.wide.contains_key(&value) || is_of_rows(own) || own.rows() == 1 || own == shape && is_made
    }

    fn wide_form(&mut self, id: NodeId, value: Value, shape: &Shape) -> Result<Value, GraphError> {
        if let Some(&wide) = self.wide.get(&value) {
            return Ok(wide);
        }
        let (graph, own) = (self.graph, self.graph.shape(value));
        if is_of_rows(own) {
            return Ok(self.rewriter.get(value));
        }
        let columns = self.columns(shape);
        let source = graph.node(value.node);
        let with_columns = || {
            let mut sizes = own.to_vec();
            *sizes.last_mut().expect("a matrix has columns") = columns;
            Shape::from(sizes)
        };
        let made = match &source.op {
            Op::OneHot(_) => {
                let index = self.rewriter.get(source.inputs[0]);
                self.rewriter.at(id, |g| g.push1(OneHot { depth: columns }, &[index]))
            }
            Op::Broadcast(_) if own == shape => {
                let of_rows = self.rewriter.get(source.inputs[0]);
                self.rewriter.at(id, |g| g.push1(Broadcast { shape: with_columns() }, &[of_rows]))
            }
            Op::Constant(constant) if constant.uniform().is_some() => {
                let number = constant.at(0);
                self.rewriter.at(id, |g| g.constant(constant.dtype, with_columns(), number))
            }
            _ => return self.padded(id, value, own.rank() - 1, columns),
        }?;
        if own == shape {
            self.wide.insert(value, made);
            self.cut.insert(value);
        }
        Ok(made)
    }

    fn softmax(&mut self, id: NodeId) -> Result<bool, GraphError> {
        let (own, node) = (Value { node: id, output: 0 }, self.graph.node(id));
        if !self.wide.contains_key(&node.inputs[0]) {
            return Ok(false);
        }
        let x = self.masked(id, node.inputs[0], f64::NEG_INFINITY)?;
        let result = self.rewriter.at(id, |g| g.push1(node.op.clone(), &[x]))?;
        self.wide.insert(own, result);
        Ok(true)
    }

    fn reduction(&mut self, id: NodeId, reduce: &Reduce) -> Result<bool, GraphError> {
        let own = Value { node: id, output: 0 };
        let input = self.graph.node(id).inputs[0];
        let Some(&wide) = self.wide.get(&input) else { return Ok(false) };
        let result = match reduce.axes[..] {
            [1] => {
                let x = self.masked(id, input, reduce.kind.identity())?;
                self.rewriter.at(id, |g| g.push1(reduce.clone(), &[x]))?
            }
            [0] => {
                let shape = self.graph.shape(own);
                let (start, step) = (vec![0; shape.rank()], vec![1; shape.rank()]);
                self.rewriter.at(id, |g| {
                    let all = g.push1(reduce.clone(), &[wide])?;
                    g.slice(all, &start, shape, &step)
                })?
            }
            _ => return Ok(false),
        };
        self.rewriter.set(own, result);
        Ok(true)
    }

    /// A wide matrix whose further columns hold this number.
    fn masked(&mut self, id: NodeId, value: Value, number: f64) -> Result<Value, GraphError> {
        let key = (value, number.to_bits());
        if let Some(&masked) = self.masked.get(&key) {
            return Ok(masked);
        }
        let shape = self.graph.shape(value);
        let mask = self.mask(id, shape)?;
        let (wide, dtype) = (self.wide[&value], self.graph.dtype(value));
        let masked = self.rewriter.at(id, |g| {
            let number = g.constant(dtype, [], number)?;
            g.select(mask, wide, number)
        })?;
        self.masked.insert(key, masked);
        if number == 0.0 {
            // What reads the matrix later reads this one, so that one of the two is stored.
            self.wide.insert(value, masked);
        }
        Ok(masked)
    }

    /// `bool[columns]`: whether a column is one of those of the source.
    fn mask(&mut self, id: NodeId, shape: &Shape) -> Result<Value, GraphError> {
        let (own, columns) = (shape.cols(), self.columns(shape));
        if let Some(&mask) = self.masks.get(&own) {
            return Ok(mask);
        }
        let mask = self.rewriter.at(id, |g| {
            let ones = g.constant(DType::F32, [own], 1.0)?;
            let ones = g.pad(ones, &[0], &[columns - own])?;
            let zero = g.constant(DType::F32, [], 0.0)?;
            g.binary(BinaryKind::Gt, ones, zero)
        })?;
        self.masks.insert(own, mask);
        Ok(mask)
    }

    /// A value of the source with zeros behind the last element of an axis, which has `size` elements then.
    fn padded(&mut self, id: NodeId, value: Value, axis: usize, size: usize) -> Result<Value, GraphError> {
        if let Some(&padded) = self.padded.get(&(value, axis)) {
            return Ok(padded);
        }
        self.cut(value)?;
        let own = self.graph.shape(value);
        let (low, mut high) = (vec![0; own.rank()], vec![0; own.rank()]);
        high[axis] = size - own[axis];
        let narrow = self.rewriter.get(value);
        let padded = self.rewriter.at(id, |g| g.pad(narrow, &low, &high))?;
        self.padded.insert((value, axis), padded);
        Ok(padded)
    }

    /// Lets the new graph have a value without further columns.
    fn cut(&mut self, value: Value) -> Result<(), GraphError> {
        let Some(&wide) = self.wide.get(&value) else { return Ok(()) };
        if self.cut.insert(value) {
            let shape = self.graph.shape(value);
            let narrow = self.rewriter.at(value.node, |g| g.slice(wide, &[0, 0], shape, &[1, 1]))?;
            self.rewriter.set(value, narrow);
            self.copies += 1;
        }
        Ok(())
    }
}

/// Whether a tensor has one element for each row of a matrix, or one for all.
fn is_of_rows(shape: &Shape) -> bool {
    shape.rank() == 0 || shape.cols() == 1
}
