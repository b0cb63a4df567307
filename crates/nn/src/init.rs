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
    /// 0 in every element.
    Zeros,
    /// 1 in every element.
    Ones,
    /// This number in every element.
    Constant(f64),
    /// Uniform in `[-bound, bound]`.
    Uniform {
        /// The largest magnitude.
        bound: f64,
    },
    /// Normal of this standard deviation.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Normal of this standard deviation before it is cut at two of them: TensorFlow's `truncated_normal_initializer`.
    CutNormal {
        /// Standard deviation of the distribution that is cut.
        std: f64,
    },
    /// Normal of variance `2 / fan` (He et al., "Delving deep into rectifiers", 2015, equation 10).
    KaimingNormal(Fan),
    /// Normal of variance `2 / fan`, cut at two standard deviations of the uncut distribution: TensorFlow's
    /// `variance_scaling` with scale 2.
    TruncatedNormal(Fan),
    /// Normal of variance `1 / fan`, cut in the same way: Keras' `lecun_normal`, `variance_scaling` with scale 1.
    LecunNormal(Fan),
    /// Uniform in `±sqrt(6 / (inputs + outputs))` (Glorot, Bengio: "Understanding the difficulty of training deep feedforward
    /// neural networks", 2010, equation 16).
    GlorotUniform,
    /// Normal in some columns of a matrix, 0 in the others.
    NormalColumns {
        /// Standard deviation.
        std: f64,
        /// The first of the columns, and the one behind the last.
        columns: [usize; 2],
    },
    /// `amplitude * sin(f * row)` and `amplitude * cos(f * row)` in turn in the columns of a matrix (Vaswani et al., "Attention
    /// is all you need", 2017, section 3.5).
    Sinusoids {
        /// The first of the columns; those before are 0.
        first_column: usize,
        /// The largest magnitude.
        amplitude: f64,
        /// The first and the last frequency `f`, in radians; those between are in equal ratios.
        frequencies: [f64; 2],
    },
    /// This number on the diagonal of a matrix, 0 elsewhere.
    Diagonal(f64),
}

/// Standard deviation of the standard normal distribution cut at -2 and 2.
const TRUNCATED_STD: f64 = 0.879_625_661_034_239_8;

/// Initial content of a tensor, in the order of the graph: a function of `seed` and the tensor's name, type and
/// initialiser alone.
pub fn initialise(spec: &ParamSpec, seed: u64) -> Vec<f32> {
    let count = spec.ty.shape.elements();
    let random = uniforms(seed, &spec.name);
    let std = |fan| (2.0 / fan_of(spec, fan)).sqrt();
    match spec.init {
        Init::Zeros => vec![0.0; count],
        Init::Ones => vec![1.0; count],
        Init::Constant(value) => vec![value as f32; count],
        Init::Uniform { bound } => random.map(|u| (bound * (2.0 * u - 1.0)) as f32).take(count).collect(),
        Init::Normal { std } => normals(random).map(|x| (std * x) as f32).take(count).collect(),
        Init::CutNormal { std } => cut_normals(random).map(|x| (std * x) as f32).take(count).collect(),
        Init::KaimingNormal(fan) => {
            let std = std(fan);
            normals(random).map(|x| (std * x) as f32).take(count).collect()
        }
        Init::TruncatedNormal(fan) => {
            let std = std(fan) / TRUNCATED_STD;
            cut_normals(random).map(|x| (std * x) as f32).take(count).collect()
        }
        Init::LecunNormal(fan) => {
            let std = fan_of(spec, fan).sqrt().recip() / TRUNCATED_STD;
            cut_normals(random).map(|x| (std * x) as f32).take(count).collect()
        }
        Init::GlorotUniform => {
            let bound = (6.0 / (fan_of(spec, Fan::In) + fan_of(spec, Fan::Out))).sqrt();
            random.map(|u| (bound * (2.0 * u - 1.0)) as f32).take(count).collect()
        }
        Init::NormalColumns { std, columns } => {
            let mut numbers = normals(random);
            let inside = columns[0]..columns[1];
            by_place(
                spec,
                |_, column| if inside.contains(&column) { std * numbers.next().expect("endless") } else { 0.0 },
            )
        }
        Init::Sinusoids { first_column, amplitude, frequencies } => {
            let waves = (spec.ty.shape.cols() - first_column).div_ceil(2);
            let ratio = frequencies[1] / frequencies[0];
            by_place(spec, |row, column| {
                let Some(index) = column.checked_sub(first_column) else { return 0.0 };
                let share = (index / 2) as f64 / (waves - 1).max(1) as f64;
                let phase = row as f64 * frequencies[0] * ratio.powf(share);
                amplitude * if index % 2 == 0 { phase.sin() } else { phase.cos() }
            })
        }
        Init::Diagonal(value) => by_place(spec, |row, column| if row == column { value } else { 0.0 }),
    }
}

/// A matrix whose numbers follow from their row and column.
fn by_place(spec: &ParamSpec, mut number: impl FnMut(usize, usize) -> f64) -> Vec<f32> {
    let columns = spec.ty.shape.cols();
    (0..spec.ty.shape.elements()).map(|place| number(place / columns, place % columns) as f32).collect()
}

/// Fan of a convolution kernel `[KH, KW, CI, CO]` or a matrix `[out, in]`.
fn fan_of(spec: &ParamSpec, fan: Fan) -> f64 {
    let shape = &spec.ty.shape;
    let (inputs, outputs) = match spec.layout {
        ParamLayout::ConvHwio => (shape[0] * shape[1] * shape[2], shape[0] * shape[1] * shape[3]),
        ParamLayout::Plain | ParamLayout::LinearOfImage { .. } => (shape.cols(), shape.rows()),
    };
    match fan {
        Fan::In => inputs as f64,
        Fan::Out => outputs as f64,
    }
}

/// Endless numbers in `(0, 1)` that belong to one name.
fn uniforms(seed: u64, name: &str) -> impl Iterator<Item = f64> {
    let stream = fnv1a(name.as_bytes());
    (0u64..).flat_map(move |index| {
        let ([a, b], [c, d]) = (philox::halves(index), philox::halves(stream));
        philox::block([a, b, c, d], philox::halves(seed)).map(|word| (f64::from(word) + 0.5) / 4_294_967_296.0)
    })
}

/// Standard normal numbers from uniform ones (Box-Muller).
fn normals(mut uniforms: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
    std::iter::from_fn(move || Some((uniforms.next()?, uniforms.next()?))).flat_map(|(u, v)| {
        let radius = (-2.0 * u.ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * v).sin_cos();
        [radius * cosine, radius * sine]
    })
}

/// Those standard normal numbers that lie within two standard deviations.
fn cut_normals(uniforms: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
    normals(uniforms).filter(|x| x.abs() <= 2.0)
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
    fn distributions_of_a_given_deviation() {
        let (_, whole) = moments(&initialise(&kernel("w", Init::Normal { std: 0.02 }), 1));
        assert!((whole / 0.02f64.powi(2) - 1.0).abs() < 0.03, "variance {whole}");
        let data = initialise(&kernel("w", Init::CutNormal { std: 0.02 }), 1);
        let (_, cut) = moments(&data);
        assert!((cut / (0.02 * TRUNCATED_STD).powi(2) - 1.0).abs() < 0.03, "variance {cut}");
        assert!(data.iter().all(|x| x.abs() <= 0.04));
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
        assert!(uniform.iter().all(|x| (-0.25..=0.25).contains(x)));
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
    fn matrices_with_parts() {
        let matrix = |init| {
            let mut b = Builder::new(Mode::Infer);
            b.weight("w", [400, 6], init).expect("a new name");
            initialise(&b.specs()[0], 1)
        };
        let data = matrix(Init::NormalColumns { std: 0.5, columns: [2, 5] });
        let (inside, outside): (Vec<_>, Vec<_>) = (0..2400).partition(|place| (2..5).contains(&(place % 6)));
        assert!(outside.iter().all(|&place| data[place] == 0.0));
        let (_, variance) = moments(&inside.iter().map(|&place| data[place]).collect::<Vec<_>>());
        assert!((variance / 0.25 - 1.0).abs() < 0.1, "variance {variance}");

        let data = matrix(Init::Sinusoids { first_column: 2, amplitude: 2.0, frequencies: [0.5, 0.02] });
        let row = |row: f64| [0.0, 0.0, (0.5 * row).sin(), (0.5 * row).cos(), (0.02 * row).sin(), (0.02 * row).cos()];
        for (place, &found) in data.iter().enumerate() {
            let wanted = 2.0 * row((place / 6) as f64)[place % 6];
            assert!((f64::from(found) - wanted).abs() < 1e-6, "{place}: {found}, not {wanted}");
        }

        let data = matrix(Init::Diagonal(3.0));
        assert!(data.iter().enumerate().all(|(place, &x)| x == if place / 6 == place % 6 { 3.0 } else { 0.0 }));
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
