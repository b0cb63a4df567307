//! What cuBLASLt computes, and how fast: which GELU it means, where it keeps what its gradient needs, what it sums.

use super::case::{decode, encode};
use super::runner::Runner;
use super::{Failure, Figure};
use crate::cublaslt::{Activation, CublasLt, Epilogue, Operands, Prepared, Product, gelu_slope};
use crate::driver::{Arena, Block};
use crate::error::GpuError;
use crate::exec::measure::fill;
use bessemer_ir::ops::pointwise::erf;
use bessemer_ir::{DType, philox};
use std::sync::Arc;
use std::time::Duration;

const M: usize = 32;
const N: usize = 64;
const K: usize = 48;
/// What cuBLASLt may use beside its operands, as NVIDIA recommends for this generation.
const WORKSPACE: usize = 32 << 20;
/// Allowed between numbers that were rounded to bf16 and their references, relative to the largest.
const TOLERANCE: f64 = 1e-2;

/// Small operands in the device's memory, with the numbers that they hold.
struct Setup<'a> {
    runner: &'a Runner,
    library: Arc<CublasLt>,
    x: (Block, Vec<f64>),
    w: (Block, Vec<f64>),
    bias: (Block, Vec<f64>),
    aux: (Block, Vec<f64>),
    y: Block,
    workspace: Block,
}

const PRODUCT: Product = Product {
    batch: 1,
    m: M,
    n: N,
    k: K,
    x_transposed: false,
    w_transposed: false,
    inputs: DType::Bf16,
    output: DType::Bf16,
    tf32: false,
};

impl<'a> Setup<'a> {
    fn new(runner: &'a Runner, library: Arc<CublasLt>) -> Result<Setup<'a>, GpuError> {
        let sizes = [M * K, K * N, N, M * N, M * N].map(|elements| (elements * 2).next_multiple_of(Arena::ALIGNMENT));
        let arena = runner.context.arena(sizes.iter().sum::<usize>() + WORKSPACE)?;
        let filled = |index: usize, elements: usize| {
            let bytes: Vec<f64> = (0..elements).map(|i| philox::normal(3, 0, index as u32, i as u64).into()).collect();
            let encoded = encode(DType::Bf16, &bytes);
            let block = arena.block(sizes[..index].iter().sum(), elements * 2)?;
            runner.stream.upload(&encoded, &block)?;
            Ok::<_, GpuError>((block, decode(DType::Bf16, &encoded)))
        };
        Ok(Setup {
            x: filled(0, M * K)?,
            w: filled(1, K * N)?,
            bias: filled(2, N)?,
            aux: filled(3, M * N)?,
            y: filled(4, M * N)?.0,
            workspace: arena.block(sizes.iter().sum(), WORKSPACE)?,
            runner,
            library,
        })
    }

    /// Runs the product and returns `y`.
    fn run(&self, product: Product, epilogue: Epilogue<&Block>) -> Result<Vec<f64>, GpuError> {
        let operands = Operands { x: &self.x.0, w: &self.w.0, y: &self.y, workspace: &self.workspace };
        self.library.prepare(product, operands, epilogue, 1)?.launch(&self.runner.stream, 0)?;
        self.read(&self.y, DType::Bf16)
    }

    fn read(&self, block: &Block, ty: DType) -> Result<Vec<f64>, GpuError> {
        let mut bytes = vec![0; block.bytes()];
        self.runner.stream.download(block, &mut bytes)?;
        Ok(decode(ty, &bytes))
    }

    /// `x w` with operands read as the product says.
    fn reference(&self, product: Product) -> Vec<f64> {
        let x = |m: usize, k: usize| self.x.1[if product.x_transposed { k * M + m } else { m * K + k }];
        let w = |k: usize, n: usize| self.w.1[if product.w_transposed { n * K + k } else { k * N + n }];
        (0..M * N).map(|i| (0..K).map(|k| x(i / N, k) * w(k, i % N)).sum()).collect()
    }

    fn biased(&self) -> Vec<f64> {
        self.reference(PRODUCT).iter().enumerate().map(|(i, y)| y + self.bias.1[i % N]).collect()
    }
}

/// Largest difference, relative to the largest number of the reference.
fn difference(got: &[f64], wanted: &[f64]) -> f64 {
    let scale = wanted.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    // A number that is none is the largest difference of all.
    let worst =
        |worst: f64, (a, b): (&f64, &f64)| if (a - b).abs() <= worst || worst.is_nan() { worst } else { (a - b).abs() };
    got.iter().zip(wanted).fold(0.0, worst) / scale
}

fn equal(what: &str, got: &[f64], wanted: &[f64], figures: &mut Vec<Figure>) -> Result<(), Failure> {
    let difference = difference(got, wanted);
    figures.push(Figure::new(what, difference, "relative difference"));
    if difference <= TOLERANCE { Ok(()) } else { Err(Failure(format!("{what} differs by {difference}"))) }
}

fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// Checks products in every layout, and what is done in the same pass; `most` bytes is the largest result of all.
pub(super) fn meanings(
    runner: &Runner,
    library: Arc<CublasLt>,
    most: usize,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let setup = Setup::new(runner, library)?;
    for (x_transposed, w_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
        let product = Product { x_transposed, w_transposed, ..PRODUCT };
        let name = format!("product, x transposed {x_transposed}, w transposed {w_transposed}");
        equal(&name, &setup.run(product, Epilogue::Nothing)?, &setup.reference(product), figures)?;
    }
    sums(&setup, figures)?;
    long_sums(runner, &setup.library, figures)?;
    let (bias, aux) = (&setup.bias.0, &setup.aux.0);
    let activations = [("bias", Activation::Nothing), ("bias and GELU", Activation::Gelu)];
    for (name, activation) in activations {
        let wanted: Vec<f64> = setup.biased().into_iter().map(|y| activation.of(y)).collect();
        equal(name, &setup.run(PRODUCT, Epilogue::Bias { bias, activation })?, &wanted, figures)?;
    }
    gradients(&setup, figures)?;
    repeated_sums(runner, &setup.library, most)?;

    let gelu = setup.run(PRODUCT, Epilogue::GeluAuxBias { bias, aux })?;
    let gelu_tanh = |y| Activation::Gelu.of(y);
    let form = |f: fn(f64) -> f64| setup.biased().iter().map(|&y| f(y)).collect::<Vec<_>>();
    figures.push(Figure::new("GELU against its tanh form", difference(&gelu, &form(gelu_tanh)), "relative difference"));
    figures.push(Figure::new("GELU against its erf form", difference(&gelu, &form(gelu_erf)), "relative difference"));
    equal("GELU", &gelu, &form(gelu_tanh), figures)?;
    equal("what GELU keeps", &setup.read(aux, DType::Bf16)?, &setup.biased(), figures)
}

/// The gradient of GELU, alone and with the sums of rows. They overwrite the bias, which is given back.
fn gradients(setup: &Setup<'_>, figures: &mut Vec<Figure>) -> Result<(), Failure> {
    let (bias, aux) = (&setup.bias.0, &setup.aux.0);
    let column_sums = |numbers: &[f64]| (0..N).map(|n| numbers.iter().skip(n).step_by(N).sum()).collect::<Vec<f64>>();
    let wanted: Vec<f64> = setup.reference(PRODUCT).iter().zip(&setup.aux.1).map(|(y, &x)| y * gelu_slope(x)).collect();
    equal("gradient of GELU", &setup.run(PRODUCT, Epilogue::GeluGrad { aux })?, &wanted, figures)?;
    let got = setup.run(PRODUCT, Epilogue::GeluGradBiasGrad { bias, aux })?;
    equal("gradient of GELU beside that of the bias", &got, &wanted, figures)?;
    equal("gradient of the bias", &setup.read(bias, DType::Bf16)?, &column_sums(&wanted), figures)?;
    Ok(setup.runner.stream.upload(&encode(DType::Bf16, &setup.bias.1), bias)?)
}

/// Products that are added to a sum where it lies, or replace it: by numbers that lie in memory, too.
fn sums(setup: &Setup<'_>, figures: &mut Vec<Figure>) -> Result<(), Failure> {
    let stream = &setup.runner.stream;
    let arena = setup.runner.context.arena(M * N * 4 + 2 * Arena::ALIGNMENT)?;
    let (factor, kept) = (arena.block(0, 4)?, arena.block(Arena::ALIGNMENT, 4)?);
    stream.upload(&encode(DType::F32, &[0.375]), &factor)?;
    let product = setup.reference(PRODUCT);
    for output in [DType::Bf16, DType::F32] {
        let sum = arena.block(2 * Arena::ALIGNMENT, M * N * output.size())?;
        for (name, is_kept) in [("product added to a sum", true), ("product in place of a sum of NaN", false)] {
            let before = if is_kept { setup.aux.1.clone() } else { vec![f64::NAN; M * N] };
            stream.upload(&encode(output, &before), &sum)?;
            stream.upload(&encode(DType::F32, &[f64::from(u8::from(is_kept))]), &kept)?;
            let operands = Operands { x: &setup.x.0, w: &setup.w.0, y: &sum, workspace: &setup.workspace };
            let epilogue = Epilogue::Added { factor: &factor, kept: &kept, sum: &sum };
            setup.library.prepare(Product { output, ..PRODUCT }, operands, epilogue, 1)?.launch(stream, 0)?;
            let of = |(product, before): (&f64, &f64)| 0.375 * product + if is_kept { *before } else { 0.0 };
            let wanted: Vec<f64> = product.iter().zip(&before).map(of).collect();
            equal(&format!("{name}, {output}"), &setup.read(&sum, output)?, &wanted, figures)?;
        }
    }
    Ok(())
}

/// Elements that are summed in a product whose parts are beyond the range of `f16`, where the whole is not.
const LONG: usize = 16_384;

/// Products of long rows by each algorithm that the library proposes: some sum parts of them apart, which must stay in `f32`. Half of what is
/// summed takes back the other half, so that parts of 256 elements and more are infinite in `f16`; all of it is exact in `f32`.
fn long_sums(runner: &Runner, library: &Arc<CublasLt>, figures: &mut Vec<Figure>) -> Result<(), Failure> {
    let x: Vec<f64> = (0..M * LONG).map(|i| 16.0 + (i / LONG % 16) as f64).collect();
    let left = |n: usize| n as f64 / 2.0;
    let w = |i: usize| match (i / N, i % N) {
        (k, _) if k < LONG / 2 => 32.0,
        (k, n) if k == LONG - 1 => left(n) - 32.0,
        _ => -32.0,
    };
    let w: Vec<f64> = (0..LONG * N).map(w).collect();
    let wanted: Vec<f64> = (0..M * N).map(|i| x[i / N * LONG] * left(i % N)).collect();
    let sizes = [M * LONG, LONG * N, M * N].map(|elements| (elements * 2).next_multiple_of(Arena::ALIGNMENT));
    let arena = runner.context.arena(sizes.iter().sum::<usize>() + WORKSPACE)?;
    let block = |index: usize| arena.block(sizes[..index].iter().sum(), sizes[index]);
    let (x_block, w_block, y) = (block(0)?, block(1)?, block(2)?);
    runner.stream.upload(&encode(DType::F16, &x), &x_block)?;
    runner.stream.upload(&encode(DType::F16, &w), &w_block)?;
    let workspace = arena.block(sizes.iter().sum(), WORKSPACE)?;
    let product = Product { k: LONG, inputs: DType::F16, output: DType::F16, ..PRODUCT };
    let operands = Operands { x: &x_block, w: &w_block, y: &y, workspace: &workspace };
    let prepared = library.prepare(product, operands, Epilogue::<&Block>::Nothing, MOST)?;
    for algorithm in 0..prepared.algorithms() {
        prepared.launch(&runner.stream, algorithm)?;
        let mut bytes = vec![0; M * N * 2];
        runner.stream.download(&y.part(0, M * N * 2)?, &mut bytes)?;
        let what = format!("product of rows of {LONG}, algorithm {algorithm}");
        equal(&what, &decode(DType::F16, &bytes), &wanted, figures)?;
    }
    Ok(())
}

/// Rows, columns and summed elements of the product behind which GELU's gradient is taken in BERT-base, for 32,768 tokens.
const WIDE: [usize; 3] = [32_768, 3072, 768];

/// Gradients of a bias that are summed over many rows beside the gradient of GELU, by each algorithm that the library proposes: the same bits
/// each time. There are fewer rows where the result would be larger than `most` bytes.
fn repeated_sums(runner: &Runner, library: &Arc<CublasLt>, most: usize) -> Result<(), Failure> {
    let [rows, n, k] = WIDE;
    let m = (most / (n * 2)).clamp(1, rows);
    let sizes = [m * k, k * n, n, m * n, m * n].map(|elements| (elements * 2).next_multiple_of(Arena::ALIGNMENT));
    let arena = runner.context.arena(sizes.iter().sum::<usize>() + WORKSPACE)?;
    let block = |index: usize| arena.block(sizes[..index].iter().sum(), sizes[index]);
    let (x, w, bias, aux, y) = (block(0)?, block(1)?, block(2)?, block(3)?, block(4)?);
    for filled in [&x, &w, &aux] {
        fill(&runner.stream, DType::Bf16, filled)?;
    }
    let workspace = arena.block(sizes.iter().sum(), WORKSPACE)?;
    let operands = Operands { x: &x, w: &w, y: &y, workspace: &workspace };
    let epilogue = Epilogue::GeluGradBiasGrad { bias: &bias, aux: &aux };
    let prepared = library.prepare(Product { m, n, k, ..PRODUCT }, operands, epilogue, MOST)?;
    for algorithm in 0..prepared.algorithms() {
        let mut sums = [const { Vec::new() }; 3];
        for sum in &mut sums {
            prepared.launch(&runner.stream, algorithm)?;
            *sum = vec![0; bias.bytes()];
            runner.stream.download(&bias, sum)?;
        }
        if sums.iter().any(|sum| *sum != sums[0]) {
            let what = format!("gradients of a bias over {m} rows, algorithm {algorithm}");
            return Err(Failure(format!("{what}, have other bits when they are summed again")));
        }
    }
    Ok(())
}

/// Rows, columns and summed elements of products whose speed is measured: a square one, those of the wide layer of BERT-base for 32,768
/// tokens, and those whose rows begin anywhere, over its words.
const LARGE: [[usize; 3]; 4] = [[8192, 8192, 8192], [32_768, 3072, 768], [32_768, 768, 3072], [5120, 768, 30_522]];

/// Large products, alone and with what is done in their pass: in the way that cuBLASLt proposes first, and in the fastest of 16.
pub(super) fn speed(runner: &Runner, library: &Arc<CublasLt>, figures: &mut Vec<Figure>) -> Result<(), Failure> {
    for [m, n, k] in LARGE {
        let sizes = [m * k, k * n, n, m * n, m * n].map(|elements| (elements * 2).next_multiple_of(Arena::ALIGNMENT));
        let arena = runner.context.arena(sizes.iter().sum::<usize>() + WORKSPACE)?;
        let filled = |index: usize| {
            let block = arena.block(sizes[..index].iter().sum(), sizes[index])?;
            fill(&runner.stream, DType::Bf16, &block)?;
            Ok::<_, GpuError>(block)
        };
        let (x, w, bias, aux, y) = (filled(0)?, filled(1)?, filled(2)?, filled(3)?, filled(4)?);
        let workspace = arena.block(sizes.iter().sum(), WORKSPACE)?;
        let operands = Operands { x: &x, w: &w, y: &y, workspace: &workspace };
        let product = Product { m, n, k, ..PRODUCT };
        let epilogues = [
            ("alone", Epilogue::Nothing),
            ("with bias", Epilogue::Bias { bias: &bias, activation: Activation::Nothing }),
            ("with bias and GELU, the sum kept", Epilogue::GeluAuxBias { bias: &bias, aux: &aux }),
            ("with gradient of GELU", Epilogue::GeluGrad { aux: &aux }),
        ];
        for (what, epilogue) in epilogues {
            let (first, best) = time(runner, &library.prepare(product, operands, epilogue, MOST)?)?;
            let rate = |time: Duration| product.flops() as f64 / time.as_secs_f64() / 1e12;
            for (way, time) in [("first algorithm", first), ("fastest", best)] {
                figures.push(Figure::new(format!("[{m}, {k}] [{k}, {n}] {what}, {way}"), rate(time), "TFLOP/s"));
            }
        }
    }
    Ok(())
}

const MOST: usize = 16;

/// The least time of the first algorithm, and of all.
fn time(runner: &Runner, prepared: &Prepared) -> Result<(Duration, Duration), GpuError> {
    const TIMES: usize = 5;
    let timer = runner.context.timer()?;
    let mut times = Vec::new();
    for algorithm in 0..prepared.algorithms() {
        let mut best = Duration::MAX;
        for _ in 0..TIMES {
            best = best.min(timer.time(&runner.stream, || prepared.launch(&runner.stream, algorithm))?);
        }
        times.push(best);
    }
    Ok((times[0], times.into_iter().min().unwrap_or_default()))
}
