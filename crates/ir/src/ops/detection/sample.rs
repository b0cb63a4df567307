//! Which candidates of an image enter its losses (Girshick 2015, arXiv:1504.08083, section 2.3), and lists of chosen rows.
//!
//! Of the positives of an image at most [`Sampler::most_positives`] are chosen, then negatives until there are
//! [`Sampler::total`]. Of each kind those of the least keys are, equal keys by position. In [`SampleOrder::Random`] the key of
//! candidate `n` of image `b` is element `b * N + n` of a Philox stream; in [`SampleOrder::First`] all keys are equal.

use super::super::{Cost, GradArgs, Gradient, OpError, OpRule};
use super::check_operand;
use super::matching::NEGATIVE;
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::philox;
use crate::reference::Tensor;
use crate::shape::TensorType;

/// Which candidates of a kind are chosen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleOrder {
    /// Those of the least positions.
    First,
    /// As a random generator has it, other ones in each step. The operation has one more input: the step, `i32[]`.
    Random {
        /// Seed of the random generator.
        seed: u64,
        /// Distinguishes the random nodes of one step.
        stream: u32,
    },
}

/// How many candidates of an image are chosen, and which ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sampler {
    /// Candidates that are chosen, if there are enough.
    pub total: usize,
    /// Positives among them at most.
    pub most_positives: usize,
    /// Which ones are chosen first.
    pub order: SampleOrder,
}

impl Sampler {
    fn describe(&self) -> String {
        let order = match self.order {
            SampleOrder::First => "first".to_string(),
            SampleOrder::Random { seed, stream } => format!("seed={seed}, stream={stream}"),
        };
        format!("total={}, most_positives={}, {order}", self.total, self.most_positives)
    }

    /// Checks the attributes, and the inputs: candidates `[B, N]`, and the step if the order is random. Returns `[B, N]`.
    fn infer(&self, operand: &'static str, inputs: &[&TensorType]) -> Result<[usize; 2], OpError> {
        let candidates = match (self.order, inputs) {
            (SampleOrder::First, [candidates]) => candidates,
            (SampleOrder::Random { .. }, [candidates, step]) => {
                check_operand("step", step, DType::I32, "[]", &[])?;
                candidates
            }
            (SampleOrder::First, _) => return Err(OpError::operands(format!("the {operand} alone"))),
            _ => return Err(OpError::operands(format!("the {operand} and the step"))),
        };
        check_operand(operand, candidates, DType::I32, "[B, N]", &[None, None])?;
        match self.most_positives <= self.total && self.total > 0 {
            true => Ok([candidates.shape[0], candidates.shape[1]]),
            false => Err(OpError::Attribute(format!(
                "there must be at most as many positives ({}) as candidates in all ({}), and one of these at least",
                self.most_positives, self.total
            ))),
        }
    }

    /// Positions of the chosen positives and of the chosen negatives of an image, in the order in which they are chosen.
    /// `kinds` are positive for positives, 0 for negatives.
    fn choose(&self, image: usize, kinds: &[f64], step: Option<&&Tensor>) -> [Vec<usize>; 2] {
        let key = |position: usize| match (self.order, step) {
            (SampleOrder::Random { seed, stream }, Some(step)) => {
                philox::word(seed, step.data[0] as u32, stream, (image * kinds.len() + position) as u64)
            }
            _ => 0,
        };
        let first = |is_wanted: &dyn Fn(f64) -> bool, most: usize| {
            let mut positions: Vec<usize> = (0..kinds.len()).filter(|&i| is_wanted(kinds[i])).collect();
            positions.sort_by_key(|&i| (key(i), i));
            positions.truncate(most);
            positions
        };
        let positives = first(&|kind| kind > 0.0, self.most_positives);
        let negatives = first(&|kind| kind == 0.0, self.total - positives.len());
        [positives, negatives]
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(10 * inputs[0].shape.elements() as u64, inputs, outputs)
    }
}

/// Label of a candidate that does not count.
pub const NOT_SAMPLED: i32 = -1;

/// Labels of the candidates that are chosen. Inputs: labels `i32[B, N]`, above 0 for positives, 0 for negatives, below 0 for
/// candidates that are never chosen (a match, increased by 1, are such labels), and the step `i32[]` if the order is random.
/// Output `i32[B, N]`: the label where the candidate is chosen, else [`NOT_SAMPLED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleLabels {
    /// How many are chosen, and which ones.
    pub sampler: Sampler,
}

impl OpRule for SampleLabels {
    fn name(&self) -> &'static str {
        "sample_labels"
    }

    fn attributes(&self) -> String {
        self.sampler.describe()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType::new(DType::I32, self.sampler.infer("labels", inputs)?)])
    }

    fn gradient(&self, _graph: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; args.inputs.len()]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        self.sampler.cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let n = outputs[0].shape[1];
        let mut sampled = Tensor::from_fn(outputs[0].clone(), |_| f64::from(NOT_SAMPLED));
        for image in 0..outputs[0].shape[0] {
            let labels = &inputs[0].data[image * n..][..n];
            for i in self.sampler.choose(image, labels, inputs.get(1)).into_iter().flatten() {
                sampled.data[image * n + i] = labels[i];
            }
        }
        vec![sampled]
    }
}

/// What stands behind the chosen rows, where there are fewer than [`Sampler::total`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleFill {
    /// The rows that are not chosen, by position: matched ones as positives, all others as negatives. Padding behind them, where
    /// there are fewer than `total` candidates.
    Rest,
    /// Padding.
    Padding,
}

/// Kind of a sampled row: it is matched with a ground truth.
pub const POSITIVE_ROW: i32 = 1;
/// Kind of a sampled row: background.
pub const NEGATIVE_ROW: i32 = 0;
/// Kind of a sampled row: it stands for nothing and counts nowhere.
pub const PADDING_ROW: i32 = -1;

/// Numbers of the candidates that are chosen. Inputs: match `i32[B, N]` as [`MatchBoxes`](super::matching::MatchBoxes) gives it,
/// and the step `i32[]` if the order is random. Outputs: rows `i32[B, total]`, the chosen positives, then the chosen negatives, then
/// what fills up (padding is row 0); their kinds `i32[B, total]`, [`POSITIVE_ROW`], [`NEGATIVE_ROW`] or [`PADDING_ROW`]; numbers of
/// rows of the first two kinds, `i32[B, 2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleRows {
    /// How many are chosen, and which ones.
    pub sampler: Sampler,
    /// What follows where there are too few.
    pub fill: SampleFill,
}

impl OpRule for SampleRows {
    fn name(&self) -> &'static str {
        "sample_rows"
    }

    fn attributes(&self) -> String {
        let fill = match self.fill {
            SampleFill::Rest => "rest",
            SampleFill::Padding => "padding",
        };
        format!("{}, fill={fill}", self.sampler.describe())
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [batch, _] = self.sampler.infer("match", inputs)?;
        let rows = TensorType::new(DType::I32, [batch, self.sampler.total]);
        Ok(vec![rows.clone(), rows, TensorType::new(DType::I32, [batch, 2])])
    }

    fn gradient(&self, _graph: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None; args.inputs.len()]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        self.sampler.cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (total, n) = (self.sampler.total, inputs[0].ty.shape[1]);
        let (mut rows, mut kinds, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for image in 0..outputs[0].shape[0] {
            let matches = &inputs[0].data[image * n..][..n];
            let labels: Vec<f64> = matches.iter().map(|m| m - f64::from(NEGATIVE)).collect();
            let mut chosen = self.sampler.choose(image, &labels, inputs.get(1)).concat();
            if self.fill == SampleFill::Rest {
                let rest: Vec<usize> = (0..n).filter(|i| !chosen.contains(i)).collect();
                chosen.extend(&rest[..rest.len().min(total - chosen.len())]);
            }
            let kind = |&i: &usize| if matches[i] >= 0.0 { POSITIVE_ROW } else { NEGATIVE_ROW };
            let mut own: Vec<i32> = chosen.iter().map(kind).collect();
            own.resize(total, PADDING_ROW);
            chosen.resize(total, 0);
            counts.extend([POSITIVE_ROW, NEGATIVE_ROW].map(|kind| own.iter().filter(|&&k| k == kind).count() as f64));
            rows.extend(chosen.into_iter().map(|i| i as f64));
            kinds.extend(own.into_iter().map(f64::from));
        }
        outputs.iter().zip([rows, kinds, counts]).map(|(ty, data)| Tensor::new(ty.clone(), data)).collect()
    }
}

/// The chosen rows of all images in one list of fixed length. Input: flags `i32[B, N]`, above 0 where a row is chosen. Outputs: image
/// `i32[P]` and row among those of all images, `b * N + n`, `i32[P]`, in rising order, with zeros behind the last one; their number
/// `i32[]`. Chosen rows beyond the capacity `P` are left out. The way back is [`ScatterAdd`](crate::ops::index::ScatterAdd) of zeros
/// behind the last row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackRows {
    /// `P`
    pub capacity: usize,
}

impl OpRule for PackRows {
    fn name(&self) -> &'static str {
        "pack_rows"
    }

    fn attributes(&self) -> String {
        format!("capacity={}", self.capacity)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [flags] = inputs else { return Err(OpError::operands("flags")) };
        check_operand("flags", flags, DType::I32, "[B, N]", &[None, None])?;
        if self.capacity == 0 {
            return Err(OpError::Attribute("the capacity must be at least 1".to_string()));
        }
        if flags.shape.elements() > i32::MAX as usize {
            return Err(OpError::Sizes("there are more rows than positions of 32 bits".to_string()));
        }
        let list = TensorType::new(DType::I32, [self.capacity]);
        Ok(vec![list.clone(), list, TensorType::new(DType::I32, [])])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (flags, n) = (&inputs[0].data, inputs[0].ty.shape[1]);
        let rows: Vec<usize> = (0..flags.len()).filter(|&i| flags[i] > 0.0).take(self.capacity).collect();
        let list = |ty: &TensorType, of: &dyn Fn(usize) -> usize| {
            Tensor::from_fn(ty.clone(), |i| rows.get(i).map_or(0.0, |&row| of(row) as f64))
        };
        let count = Tensor::scalar(DType::I32, rows.len() as f64);
        vec![list(&outputs[0], &|row| row / n), list(&outputs[1], &|row| row), count]
    }
}
