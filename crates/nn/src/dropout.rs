//! Random numbers of a training step, and what leaves parts of a network out by them.

use crate::Result;
use crate::builder::{Builder, Mode};
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{DType, Shape, Value};

/// Which random numbers: a seed, and what tells the random nodes of one step apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the random node, different for each one of a step.
    pub stream: u32,
}

/// The random streams of one graph, each given once.
#[derive(Clone, Debug)]
pub struct Streams {
    seed: u64,
    next: u32,
}

impl Streams {
    /// The streams of a run with this seed, from number 0 on.
    pub fn new(seed: u64) -> Self {
        Streams { seed, next: 0 }
    }

    /// A stream that no other random node of the graph has.
    pub fn next_stream(&mut self) -> RandomStream {
        self.next += 1;
        RandomStream { seed: self.seed, stream: self.next - 1 }
    }
}

impl Builder {
    /// In training, zeros for a share `rate` of the elements, chosen again for each micro-batch, and the others divided by
    /// `1 - rate` (Srivastava et al.: "Dropout", 2014).
    ///
    /// # Errors
    /// None for a tensor of floats.
    pub fn dropout(&mut self, x: Value, rate: f64, random: RandomStream) -> Result<Value> {
        let shape = self.graph.shape(x).clone();
        self.drop_shares(x, shape, rate, random)
    }

    /// Stochastic depth: in training, the residual branch `x [N, ...]` becomes zeros for a share `rate` of the samples, chosen
    /// again for each micro-batch, and is divided by `1 - rate` for the others (Huang et al. 2016, arXiv:1603.09382).
    ///
    /// # Errors
    /// None for a tensor of floats.
    pub fn drop_path(&mut self, x: Value, rate: f64, random: RandomStream) -> Result<Value> {
        let dims = self.graph.shape(x).dims();
        let samples: Vec<usize> =
            dims.iter().enumerate().map(|(axis, &size)| if axis == 0 { size } else { 1 }).collect();
        self.drop_shares(x, samples.into(), rate, random)
    }

    /// One random decision for each element of `shape`, which broadcasts to that of `x`.
    fn drop_shares(&mut self, x: Value, shape: Shape, rate: f64, random: RandomStream) -> Result<Value> {
        if rate == 0.0 || self.mode() == Mode::Infer {
            return Ok(x);
        }
        let counter = self.micro_step()?;
        let g = &mut self.graph;
        let random = Random { distribution: Distribution::Uniform, shape, seed: random.seed, stream: random.stream };
        let uniform = g.push1(random, &[counter])?;
        let limit = g.constant(DType::F32, [], f64::from(rate as f32))?;
        let is_kept = g.binary(BinaryKind::Ge, uniform, limit)?;
        let kept = g.mul_scalar(x, 1.0 / (1.0 - rate))?;
        let zero = g.constant_like(x, 0.0)?;
        g.select(is_kept, kept, zero)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::philox;
    use bessemer_ir::reference::Interpreter;

    const RANDOM: RandomStream = RandomStream { seed: 5, stream: 9 };

    /// What `build` makes of `x [N, 2]` in the first step.
    fn run(mode: Mode, x: &[f64], build: impl FnOnce(&mut Builder, Value) -> Result<Value>) -> Vec<f64> {
        let mut b = Builder::new(mode);
        let input = b.feed("x", DType::F32, [x.len() / 2, 2]).expect("a new name");
        let y = build(&mut b, input).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        run.set("x", x);
        run.run();
        run.output("y").data.clone()
    }

    /// Asserts that element `i` of 200 follows random number `i / size`.
    fn assert_follows(y: &[f64], x: &[f64], size: usize) {
        for (i, (&y, &x)) in y.iter().zip(x).enumerate() {
            let is_kept = philox::uniform(RANDOM.seed, 0, RANDOM.stream, (i / size) as u64) >= 0.25;
            let expected = if is_kept { x / 0.75 } else { 0.0 };
            assert!((y - expected).abs() < 1e-6, "element {i} is {y}, not {expected}");
        }
        let dropped = y.iter().filter(|&&y| y == 0.0).count();
        assert!((30..70).contains(&dropped), "{dropped} of 200 are dropped");
    }

    #[test]
    fn elements_and_samples_follow_the_stream() {
        let x: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_follows(&run(Mode::Train, &x, |b, x| b.dropout(x, 0.25, RANDOM)), &x, 1);
        assert_follows(&run(Mode::Train, &x, |b, x| b.drop_path(x, 0.25, RANDOM)), &x, 2);
        for mode in [Mode::Train, Mode::Infer] {
            let rate = if mode == Mode::Train { 0.0 } else { 0.25 };
            assert_eq!(run(mode, &x, |b, x| b.dropout(x, rate, RANDOM)), x);
            assert_eq!(run(mode, &x, |b, x| b.drop_path(x, rate, RANDOM)), x);
        }
    }

    #[test]
    fn no_stream_is_given_twice() {
        let mut streams = Streams::new(3);
        let given: Vec<RandomStream> = (0..3).map(|_| streams.next_stream()).collect();
        assert_eq!(given, [0, 1, 2].map(|stream| RandomStream { seed: 3, stream }));
    }
}
