//! The ranks of a job, and what a training step takes over all of them.

use crate::Result;
use bessemer_ir::ops::collective::{AllReduce, Wire};
use bessemer_ir::{Graph, Value};
use serde::{Deserialize, Serialize};

/// The ranks of a job, which share the micro-batches of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Number of ranks.
    pub count: usize,
    /// Element type in which gradients travel.
    pub wire: Wire,
    /// Whose samples batch norms take mean and variance of.
    pub norms: Over,
    /// Whose weights the sums of a loss are divided by, where samples have weights: masked words, matched boxes.
    pub means: Over,
}

/// What a mean is taken over, of the micro-batches that the ranks compute at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// The micro-batch of one rank.
    #[default]
    Rank,
    /// Those of all ranks, as if they were one batch.
    All,
}

impl Default for Ranks {
    /// One, which is alone.
    fn default() -> Self {
        Ranks { count: 1, wire: Wire::F32, norms: Over::Rank, means: Over::Rank }
    }
}

impl Ranks {
    /// The number of ranks whose samples a mean over `over` is taken of.
    pub(crate) fn sharing(&self, over: Over) -> usize {
        match over {
            Over::Rank => 1,
            Over::All => self.count,
        }
    }
}

/// The sum of `x`, `f32`, over so many ranks; itself where there is one.
pub(crate) fn over_ranks(g: &mut Graph, ranks: usize, wire: Wire, x: Value) -> Result<Value> {
    if ranks == 1 { Ok(x) } else { g.push1(AllReduce { ranks, wire }, &[x]) }
}

/// Mean and biased variance, `f32[C]`, of the rows of all ranks from those of each rank, which has as many rows as the others: the
/// variance is the mean of the variances and of the squared distances between the means (Chan, Golub, LeVeque 1979).
pub(crate) fn merged_moments(g: &mut Graph, ranks: usize, mean: Value, var: Value) -> Result<(Value, Value)> {
    if ranks == 1 {
        return Ok((mean, var));
    }
    let share = 1.0 / ranks as f64;
    let of_all = |g: &mut Graph, x: Value| {
        let part = g.mul_scalar(x, share)?;
        over_ranks(g, ranks, Wire::F32, part)
    };
    let merged = of_all(g, mean)?;
    let distance = g.sub(mean, merged)?;
    let square = g.square(distance)?;
    let spread = g.add(var, square)?;
    Ok((merged, of_all(g, spread)?))
}
