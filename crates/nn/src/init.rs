//! Initial values, made on the host.

use crate::params::{ParamLayout, ParamSpec};
use bessemer_ir::philox;

/// Number of connections that scales an initial distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Inputs of one output unit.
    In,
    /// Output units reached by one input.
    Out,
}

/// Initial content of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Zeros,
    Ones,
    Constant(f64),
    /// Uniform in `[-bound, bound)`.
    Uniform {
        bound: f64,
    },
    /// Normal of variance `2 / fan` (He et al., "Delving deep into rectifiers", 2015, equation 10).
    KaimingNormal(Fan),
    /// Normal of variance `2 / fan`, cut at two standard deviations of the uncut distribution: TensorFlow's
    /// `variance_scaling` with scale 2.
    TruncatedNormal(Fan),
}

/// Standard deviation of the standard normal distribution cut at -2 and 2.
const TRUNCATED_STD: f64 = 0.879_625_661_034_239_8;

/// Initial content of a tensor, in the order of the graph: a function of `seed` and the tensor's name, type and
/// initialiser alone.
pub fn initialise(spec: &ParamSpec, seed: u64) -> Vec<f32> {
    let count = spec.ty.shape.elements();
    let stream = Stream::new(seed, &spec.name);
    let fill = |f: &dyn Fn(u64) -> f64| (0..count as u64).map(|i| f(i) as f32).collect();
    match spec.init {
        Init::Zeros => vec![0.0; count],
        Init::Ones => vec![1.0; count],
        Init::Constant(value) => vec![value as f32; count],
        Init::Uniform { bound } => fill(&|i| bound * (2.0 * stream.uniform(i) - 1.0)),
        Init::KaimingNormal(fan) => {
            let std = (2.0 / fan_of(spec, fan)).sqrt();
            fill(&|i| std * stream.normal(i, 0))
        }
        Init::TruncatedNormal(fan) => {
            let std = (2.0 / fan_of(spec, fan)).sqrt() / TRUNCATED_STD;
            fill(&|i| std * stream.truncated_normal(i))
        }
    }
}

/// Fan of a convolution kernel `[KH, KW, CI, CO]` or a matrix `[out, in]`.
fn fan_of(spec: &ParamSpec, fan: Fan) -> f64 {
    let shape = &spec.ty.shape;
    let (inputs, outputs) = match spec.layout {
        ParamLayout::ConvHwio => (shape[0] * shape[1] * shape[2], shape[0] * shape[1] * shape[3]),
        ParamLayout::Plain => (shape.cols(), shape.rows()),
    };
    match fan {
        Fan::In => inputs as f64,
        Fan::Out => outputs as f64,
    }
}

/// The random numbers of one tensor.
struct Stream {
    seed: u64,
    high: u32,
    low: u32,
}

impl Stream {
    fn new(seed: u64, name: &str) -> Self {
        let hash = fnv1a(name.as_bytes());
        Stream { seed, high: (hash >> 32) as u32, low: hash as u32 }
    }

    fn uniform(&self, index: u64) -> f64 {
        f64::from(philox::uniform(self.seed, self.high, self.low, index))
    }

    fn normal(&self, index: u64, attempt: u32) -> f64 {
        f64::from(philox::normal(self.seed, self.high.wrapping_add(attempt), self.low, index))
    }

    /// Standard normal given that it lies in `[-2, 2]`, by rejection.
    fn truncated_normal(&self, index: u64) -> f64 {
        let mut attempt = 0;
        loop {
            let x = self.normal(index, attempt);
            if x.abs() <= 2.0 {
                return x;
            }
            attempt += 1;
        }
    }
}

/// 64-bit FNV-1a.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Mode};

    fn kernel(name: &str, init: Init) -> ParamSpec {
        let mut b = Builder::new(Mode::Infer);
        b.kernel(name, [3, 3, 16, 128], init).expect("a new name");
        b.specs()[0].clone()
    }

    fn moments(data: &[f32]) -> (f64, f64) {
        let mean = data.iter().map(|&x| f64::from(x)).sum::<f64>() / data.len() as f64;
        let variance = data.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / data.len() as f64;
        (mean, variance)
    }

    #[test]
    fn variances_follow_the_fan() {
        let (fan_in, fan_out): (f64, f64) = (9.0 * 16.0, 9.0 * 128.0);
        for (init, fan) in [
            (Init::KaimingNormal(Fan::In), fan_in),
            (Init::KaimingNormal(Fan::Out), fan_out),
            (Init::TruncatedNormal(Fan::In), fan_in),
            (Init::TruncatedNormal(Fan::Out), fan_out),
            (Init::Uniform { bound: (6.0f64 / 144.0).sqrt() }, fan_in),
        ] {
            let (mean, variance) = moments(&initialise(&kernel("w", init), 1));
            assert!(mean.abs() < 0.03 * (2.0 / fan).sqrt(), "{init:?}: mean {mean}");
            assert!((variance * fan / 2.0 - 1.0).abs() < 0.03, "{init:?}: variance {variance}");
        }
    }

    #[test]
    fn matrices_count_inputs_along_the_last_axis() {
        let mut b = Builder::new(Mode::Infer);
        b.weight("w", [50, 400], Init::KaimingNormal(Fan::In)).expect("a new name");
        let (_, variance) = moments(&initialise(&b.specs()[0], 1));
        assert!((variance * 200.0 - 1.0).abs() < 0.05, "variance {variance}");
    }

    #[test]
    fn cut_distributions_end() {
        let limit = (2.0 * (2.0f64 / 144.0).sqrt() / TRUNCATED_STD) as f32;
        let data = initialise(&kernel("w", Init::TruncatedNormal(Fan::In)), 3);
        let largest = data.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(largest <= limit && largest > 0.98 * limit, "{largest} of {limit}");
        let uniform = initialise(&kernel("w", Init::Uniform { bound: 0.25 }), 3);
        assert!(uniform.iter().all(|x| (-0.25..0.25).contains(x)));
    }

    #[test]
    fn values_depend_on_seed_and_name_alone() {
        let init = Init::KaimingNormal(Fan::In);
        let data = initialise(&kernel("a", init), 5);
        assert_eq!(data, initialise(&kernel("a", init), 5));
        assert_ne!(data, initialise(&kernel("b", init), 5));
        assert_ne!(data, initialise(&kernel("a", init), 6));
    }

    #[test]
    fn constants() {
        assert!(initialise(&kernel("w", Init::Ones), 0).iter().all(|&x| x == 1.0));
        assert!(initialise(&kernel("w", Init::Zeros), 0).iter().all(|&x| x == 0.0));
        assert!(initialise(&kernel("w", Init::Constant(0.5)), 0).iter().all(|&x| x == 0.5));
    }

    #[test]
    fn hash_known_answer() {
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
