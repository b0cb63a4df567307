//! The random numbers of mixup: functions of the seed and the step alone.

use bessemer_ir::philox;

/// Word of the generator's counter that keeps these numbers apart from all others: "mixu".
const STREAM: u32 = 0x6d69_7875;

/// Order and share of one step, for [`bessemer_models::LossOptions::mixup`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mix {
    /// Share of the first sample, from Beta(alpha, alpha).
    pub weight: f32,
    /// The sample each one is mixed with, a random permutation.
    pub order: Vec<i32>,
}

impl Mix {
    /// The draw of step `step` (from 0) for a batch of `batch` samples.
    pub(super) fn draw(seed: u64, step: u64, alpha: f64, batch: usize) -> Self {
        let mut words = Words::new(seed, step);
        let (first, second) = (log_gamma_variate(&mut words, alpha), log_gamma_variate(&mut words, alpha));
        let weight = 1.0 / (1.0 + (second - first).exp());
        let mut order: Vec<i32> = (0..batch as i32).collect();
        for last in (1..batch).rev() {
            order.swap(last, philox::below(last as u32 + 1, || words.pair()[0]) as usize);
        }
        Self { weight: weight as f32, order }
    }
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
    step: u32,
    index: u32,
}

impl Words {
    fn new(seed: u64, step: u64) -> Self {
        Self { key: philox::halves(seed), step: step as u32, index: 0 }
    }

    fn pair(&mut self) -> [u32; 2] {
        let [a, b, ..] = philox::block([self.index, 0, self.step, STREAM], self.key);
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

    #[test]
    fn shares_have_the_moments_of_beta() {
        for alpha in [0.05, 0.2, 1.0, 3.0] {
            let draws: Vec<f64> = (0..20_000).map(|step| f64::from(Mix::draw(7, step, alpha, 1).weight)).collect();
            assert!(draws.iter().all(|x| (0.0..=1.0).contains(x)));
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.015, "alpha {alpha}: mean {mean}");
            assert!((variance / expected - 1.0).abs() < 0.04, "alpha {alpha}: variance {variance}, not {expected}");
        }
    }

    #[test]
    fn orders_are_permutations_that_follow_seed_and_step() {
        let mix = Mix::draw(1, 5, 0.2, 64);
        let mut sorted = mix.order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<_>>());
        assert_ne!(mix.order, sorted);
        assert_eq!(mix, Mix::draw(1, 5, 0.2, 64));
        assert_ne!(mix, Mix::draw(1, 6, 0.2, 64));
        assert_ne!(mix, Mix::draw(2, 5, 0.2, 64));
    }
}
