//! The random numbers of mixup: functions of the seed and the number of the micro-batch alone.

use bessemer_data::Position;
use bessemer_ir::philox;
use bessemer_models::MixupWeight;

/// Word of the generator's counter that keeps these numbers apart from all others: "mixu".
const STREAM: u32 = 0x6d69_7875;

/// Order and shares of one micro-batch, for [`bessemer_models::LossOptions::mixup`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mix {
    /// Share of the first sample of a pair, from Beta(alpha, alpha): one for all, or one for each.
    pub weights: Vec<f32>,
    /// The sample each one is mixed with.
    pub order: Vec<i32>,
}

impl Mix {
    /// The draw for a micro-batch of `batch` samples.
    pub(super) fn draw(seed: u64, position: Position, form: MixupWeight, alpha: f64, batch: usize) -> Self {
        let mut words = Words::new(seed, position);
        match form {
            MixupWeight::Batch => {
                let weights = vec![beta_variate(&mut words, alpha)];
                let mut order: Vec<i32> = (0..batch as i32).collect();
                for last in (1..batch).rev() {
                    order.swap(last, philox::below(last as u32 + 1, || words.pair()[0]) as usize);
                }
                Self { weights, order }
            }
            MixupWeight::Sample => Self {
                weights: (0..batch).map(|_| beta_variate(&mut words, alpha)).collect(),
                order: (0..batch as i32).rev().collect(),
            },
        }
    }
}

/// A draw from Beta(alpha, alpha).
fn beta_variate(words: &mut Words, alpha: f64) -> f32 {
    let (first, second) = (log_gamma_variate(words, alpha), log_gamma_variate(words, alpha));
    (1.0 / (1.0 + (second - first).exp())) as f32
}

/// Logarithm of a draw from Gamma(shape, 1), by Marsaglia, Tsang: "A simple method for generating gamma variables", 2000.
/// Shapes below 1 go through `shape + 1` and a power of a uniform number, which in logarithms does not underflow.
fn log_gamma_variate(words: &mut Words, shape: f64) -> f64 {
    if shape < 1.0 {
        return log_gamma_variate(words, shape + 1.0) + words.unit().ln() / shape;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = words.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && words.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

/// Random words in sequence.
struct Words {
    key: [u32; 2],
    /// Numbers of the epoch and of the micro-batch in it.
    position: [u32; 2],
    index: u32,
}

impl Words {
    fn new(seed: u64, Position { epoch, batch }: Position) -> Self {
        Self { key: philox::halves(seed), position: [epoch, batch as u32], index: 0 }
    }

    fn pair(&mut self) -> [u32; 2] {
        let [epoch, batch] = self.position;
        let [a, b, ..] = philox::block([self.index, epoch, batch, STREAM], self.key);
        self.index += 1;
        [a, b]
    }

    /// Uniform in `(0, 1]` with 53 bits.
    fn unit(&mut self) -> f64 {
        let [low, high] = self.pair();
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Standard normal (Box-Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u32, batch: usize) -> Position {
        Position { epoch, batch }
    }

    #[test]
    fn shares_have_the_moments_of_beta() {
        for alpha in [0.05, 0.2, 1.0, 3.0] {
            let of_batch = |index| Mix::draw(7, at(0, index), MixupWeight::Batch, alpha, 1).weights;
            let draws: Vec<f64> = (0..20_000).flat_map(of_batch).map(f64::from).collect();
            assert!(draws.iter().all(|x| (0.0..=1.0).contains(x)));
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.015, "alpha {alpha}: mean {mean}");
            assert!((variance / expected - 1.0).abs() < 0.04, "alpha {alpha}: variance {variance}, not {expected}");
        }
    }

    #[test]
    fn orders_are_permutations_that_follow_seed_and_position() {
        let draw = |seed, position| Mix::draw(seed, position, MixupWeight::Batch, 0.2, 64);
        let mix = draw(1, at(0, 5));
        let mut sorted = mix.order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<_>>());
        assert_ne!(mix.order, sorted);
        assert_eq!(mix, draw(1, at(0, 5)));
        assert_ne!(mix, draw(1, at(0, 6)));
        assert_ne!(mix, draw(1, at(1, 5)));
        assert_ne!(mix, draw(2, at(0, 5)));
    }

    #[test]
    fn samples_have_shares_of_their_own() {
        let Mix { weights, order } = Mix::draw(1, at(0, 5), MixupWeight::Sample, 0.2, 5);
        assert_eq!(order, [4, 3, 2, 1, 0]);
        let different: std::collections::BTreeSet<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
        assert_eq!((weights.len(), different.len()), (5, 5));
    }
}
