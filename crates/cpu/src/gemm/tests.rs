//! Products of `bf16` pairs, in vectors and in tiles: emulated on the portable instruction set, beside `f32` products of the same
//! elements, and bit for bit what the instructions of this processor compute.

use super::blocking::joined_blocks;
use super::{
    Activation, Addend, Ctx, Epilogue, GemmDesc, Output, Store, TypedSlice, Weights, gemm, pack_b, packed_b_len,
    scratch_len,
};
use crate::conv::{self, ConvDesc};
use crate::isa::Isa;
use crate::simd::{PanelFormat, emulated};
use crate::threads::ThreadPool;
use crate::vector;
use bessemer_ir::DType;
use half::bf16;
use std::io::Write;
use std::ops::Range;
use std::sync::Mutex;

/// Both formats of products of `bf16`.
const FORMATS: [PanelFormat; 2] = [PanelFormat::Dot2, PanelFormat::Tiles];

/// Elements that `bf16` holds exactly, in both types.
fn elements(len: usize, seed: usize) -> (Vec<bf16>, Vec<f32>) {
    let low: Vec<bf16> =
        (0..len).map(|i| bf16::from_f32(((i * 7919 + seed * 104_729) % 251) as f32 / 125.0 - 1.0)).collect();
    let high = low.iter().map(|x| x.to_f32()).collect();
    (low, high)
}

#[track_caller]
fn assert_close(pairs: &[f32], singles: &[f32], what: &str) {
    let scale = singles.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in pairs.iter().zip(singles).enumerate() {
        assert!((a - b).abs() <= 1e-5 * scale, "{what}: element {i} is {a}, not {b}");
    }
}

#[test]
fn matrix_products() {
    for format in FORMATS {
        emulated::set_format(format);
        matrix_products_in(format);
    }
}

fn matrix_products_in(format: PanelFormat) {
    let pool = ThreadPool::new(2);
    let ctx = Ctx::alone(Isa::Portable, &pool);
    for (m, n, k, batch) in [
        (70, 45, 91, 1),
        (1, 300, 601, 1),
        (33, 20, 2, 1),
        (9, 20, 33, 17),
        (60, 70, 1100, 2),
        (400, 901, 45, 1),
        (17, 33, 31, 9),
    ] {
        for layout in 0..4 {
            let desc = GemmDesc::new(m, n, k).transposed(layout & 1 != 0, layout & 2 != 0).batched(batch);
            let (a, wide_a) = elements(batch * m * k, 1);
            let (b, wide_b) = elements(batch * k * n, 2);
            let mut scratch = vec![f32::NAN; scratch_len(&desc, 2)];
            let mut expected = vec![f32::NAN; batch * m * n];
            gemm(ctx, &desc, &wide_a, &wide_b, Output::new(&mut expected), &mut scratch, None);
            let mut c = vec![f32::NAN; batch * m * n];
            let b = TypedSlice::from(b.as_slice());
            gemm(ctx, &desc, a.as_slice(), b, Output::new(&mut c), &mut scratch, None);
            assert_close(&c, &expected, &format!("{format:?} {desc:?}"));
            if super::takes_packed_b(&desc) {
                let mut packed = vec![f32::NAN; packed_b_len(&desc)];
                pack_b(ctx, &desc, b, &mut packed);
                let mut again = vec![f32::NAN; batch * m * n];
                gemm(ctx, &desc, a.as_slice(), Weights::Packed(&packed), Output::new(&mut again), &mut scratch, None);
                assert_eq!(c, again, "{format:?} {desc:?}, packed before");
            }
        }
    }
}

/// An epilogue that is left to the product, and the blocks of which the product stored the first columns, with their rows.
struct Left {
    store: Store,
    stored: Mutex<Vec<(usize, Range<usize>)>>,
}

impl Left {
    fn new(store: Store) -> Left {
        Left { store, stored: Mutex::default() }
    }
}

impl Epilogue for Left {
    fn block(&self, _: usize, _: usize, _: Range<usize>, _: Range<usize>) {
        panic!("the product stores by itself");
    }

    fn as_store(&self) -> Option<&Store> {
        Some(&self.store)
    }

    fn stored_block(&self, _: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        if cols.start == 0 {
            self.stored.lock().unwrap().push((block, rows));
        }
    }
}

#[test]
fn products_store_as_what_follows_them_computes() {
    for format in [PanelFormat::F32, PanelFormat::Dot2, PanelFormat::Tiles] {
        emulated::set_format(format);
        for isa in Isa::available() {
            let long = [[33, 32, 600], [250, 528, 545], [17, 96, 1100]];
            let short = [[70, 64, 91], [131, 24, 16], [40, 819, 64], [5, 3, 7]];
            for size in long.into_iter().chain(short) {
                stores_in(isa, size);
            }
        }
    }
}

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Relu, Activation::Swish, Activation::Gelu];

fn stores_in(isa: Isa, [m, n, k]: [usize; 3]) {
    let pool = ThreadPool::new(2);
    let ctx = Ctx::alone(isa, &pool);
    let desc = GemmDesc::new(m, n, k);
    let ([a, b, addend], [bias, addend_bias]) = (
        [(m * k, 1), (k * n, 2), (m * n, 3)].map(|(len, seed)| elements(len, seed).0),
        [4, 5].map(|seed| elements(n, seed).1),
    );
    let mut scratch = vec![f32::NAN; scratch_len(&desc, 2)];
    let mut c = vec![f32::NAN; m * n];
    gemm(ctx, &desc, &a[..], TypedSlice::from(&b[..]), Output::new(&mut c), &mut scratch, None);
    // The bits say whether there is a bias, an addend of 16 bits with a bias, an output of 16 bits.
    let forms = (0..8usize).flat_map(|form| ACTIVATIONS.map(|activation| (form, activation)));
    for (form, activation) in forms.filter(|(form, activation)| form & 2 == 0 || !activation.is_function()) {
        let has = |bit: usize| form & bit != 0;
        let finished = c.iter().enumerate().map(|(i, &c)| {
            let with_bias = if has(1) { c + bias[i % n] } else { c };
            let sum = if has(2) { with_bias + (addend[i].to_f32() + addend_bias[i % n]) } else { with_bias };
            match activation {
                Activation::None => sum,
                Activation::Relu => sum.max(0.0),
                Activation::Swish => sum * vector::sigmoid(sum),
                Activation::Gelu => vector::gelu(sum),
            }
        });
        let mut narrow = vec![bf16::NAN; m * n];
        let mut wide = vec![f32::NAN; m * n];
        let store = Store {
            bias: has(1).then_some(bias.as_ptr()),
            addend: has(2).then_some(Addend {
                elements: addend.as_ptr().cast(),
                dtype: DType::Bf16,
                bias: Some(addend_bias.as_ptr()),
            }),
            activation,
            output: if has(4) { narrow.as_mut_ptr().cast() } else { wide.as_mut_ptr().cast() },
            output_type: if has(4) { DType::Bf16 } else { DType::F32 },
        };
        let mut sums = vec![f32::NAN; m * n];
        gemm(
            ctx,
            &desc,
            &a[..],
            TypedSlice::from(&b[..]),
            Output::new(&mut sums),
            &mut scratch,
            Some(&Left::new(store)),
        );
        for (i, want) in finished.enumerate() {
            let (got, want) =
                if has(4) { (narrow[i].to_f32(), bf16::from_f32(want).to_f32()) } else { (wide[i], want) };
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{isa} {m} x {n} x {k}, form {form}, {activation:?}: element {i} is {got}, not {want}"
            );
        }
    }
}

/// A convolution with a kernel, a stride and a padding that are the same along both axes.
fn square(n: usize, size: [usize; 2], channels: [usize; 2], [kernel, stride, pad]: [usize; 3]) -> ConvDesc {
    let out = size.map(|size| (size + 2 * pad - kernel) / stride + 1);
    ConvDesc {
        n,
        h: size[0],
        w: size[1],
        c_in: channels[0],
        kh: kernel,
        kw: kernel,
        c_out: channels[1],
        oh: out[0],
        ow: out[1],
        stride: [stride; 2],
        dilation: [1; 2],
        pad: [pad; 2],
    }
}

#[test]
fn convolutions() {
    for format in FORMATS {
        emulated::set_format(format);
        convolutions_in(format);
    }
}

fn convolutions_in(format: PanelFormat) {
    let pool = ThreadPool::new(2);
    let ctx = Ctx::alone(Isa::Portable, &pool);
    for (channels, kernel, stride, pad) in [
        ([3, 7], 5, 2, 2),
        ([16, 20], 3, 1, 1),
        ([9, 12], 1, 2, 0),
        ([6, 5], 3, 3, 1),
        ([32, 64], 3, 1, 1),
        ([64, 32], 1, 1, 0),
        ([64, 32], 3, 1, 0),
        ([32, 40], 3, 2, 1),
        ([64, 20], 5, 3, 2),
        ([3, 40], 7, 2, 3),
        ([3, 130], 7, 2, 3),
        ([8, 33], 3, 1, 1),
        ([4, 7], 5, 2, 0),
    ] {
        let d = square(2, [11, 9], channels, [kernel, stride, pad]);
        let (x, wide_x) = elements(d.n * d.h * d.w * d.c_in, 3);
        let (weights, wide_weights) = elements(kernel * kernel * d.c_in * d.c_out, 4);
        let (dy, wide_dy) = elements(d.n * d.oh * d.ow * d.c_out, 5);
        let (x, weights, dy) = (TypedSlice::from(&x[..]), TypedSlice::from(&weights[..]), TypedSlice::from(&dy[..]));
        let nan = |len: usize| vec![f32::NAN; len];

        let (mut y, mut expected) = (nan(wide_dy.len()), nan(wide_dy.len()));
        let mut scratch = nan(conv::forward_scratch_len(&d, 2));
        conv::forward(ctx, &d, x, weights, Output::new(&mut y), &mut scratch, None);
        conv::forward(ctx, &d, &wide_x, &wide_weights, Output::new(&mut expected), &mut scratch, None);
        assert_close(&y, &expected, &format!("{format:?} forward {d:?}"));

        let (mut dx, mut expected) = (nan(wide_x.len()), nan(wide_x.len()));
        let mut scratch = nan(conv::data_grad_scratch_len(&d, 2));
        conv::data_grad(ctx, &d, dy, weights, Output::new(&mut dx), &mut scratch, None);
        conv::data_grad(ctx, &d, &wide_dy, &wide_weights, Output::new(&mut expected), &mut scratch, None);
        assert_close(&dx, &expected, &format!("{format:?} data gradient {d:?}"));

        let (mut dw, mut expected) = (nan(wide_weights.len()), nan(wide_weights.len()));
        let mut scratch = nan(conv::weight_grad_scratch_len(&d, DType::Bf16, 2));
        conv::weight_grad(ctx, &d, x, dy, Output::new(&mut dw), &mut scratch);
        conv::weight_grad(ctx, &d, &wide_x, &wide_dy, Output::new(&mut expected), &mut scratch);
        assert_close(&dw, &expected, &format!("{format:?} weight gradient {d:?}"));
    }
}

/// Enough rows that tiles multiply several blocks of them at once: of pixels, and of windows on lines that have most of their pixels in
/// common, some with more positions between the lines of windows than there is room for. Results are those of single blocks, and epilogues get
/// these.
#[test]
fn blocks_that_are_multiplied_at_once_come_one_by_one() {
    for (n, size, channels, kernel, stride) in [
        (2, [61, 63], [32, 24], 1, 1),
        (3, [64, 58], [32, 16], 3, 1),
        (2, [90, 94], [3, 24], 7, 2),
        (1, [33, 450], [32, 16], 3, 1),
    ] {
        let d = square(n, size, channels, [kernel, stride, kernel / 2]);
        let (x, _) = elements(n * size[0] * size[1] * d.c_in, 3);
        let (weights, _) = elements(kernel * kernel * d.c_in * d.c_out, 4);
        let (x, weights) = (TypedSlice::from(&x[..]), TypedSlice::from(&weights[..]));
        let rows = n * d.oh * d.ow;
        for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            emulated::set_format(PanelFormat::Tiles);
            let pool = ThreadPool::new(threads);
            let ctx = Ctx::alone(isa, &pool);
            let mut sums = vec![f32::NAN; rows * d.c_out];
            let mut scratch = vec![f32::NAN; conv::forward_scratch_len(&d, threads)];
            conv::forward(ctx, &d, x, weights, Output::new(&mut sums), &mut scratch, None);
            let mut stored = vec![f32::NAN; rows * d.c_out];
            let output = stored.as_mut_ptr().cast();
            let left = Left::new(Store {
                bias: None,
                addend: None,
                activation: Activation::None,
                output,
                output_type: DType::F32,
            });
            let mut c = vec![f32::NAN; rows * d.c_out];
            conv::forward(ctx, &d, x, weights, Output::new(&mut c), &mut scratch, Some(&left));
            assert_eq!(sums, stored, "{isa} on {threads}: {d:?}");
            let blocks = conv::forward_row_blocks(&d);
            assert!(joined_blocks(blocks, threads) > 1, "{d:?}: {blocks:?} are too few");
            let mut one_by_one = left.stored.into_inner().unwrap();
            one_by_one.sort_by_key(|(block, _)| *block);
            let all: Vec<_> = (0..blocks.count).map(|block| (block, blocks.range(block, rows))).collect();
            assert_eq!(one_by_one, all, "{isa} on {threads}: {d:?}");
        }
    }
}

/// Of several chunks and parts of the reduction, blocks of channels, and panels, with borders of all kinds; on one thread and on two.
#[test]
fn gradients_of_weights_from_shifted_inputs() {
    emulated::set_format(PanelFormat::Tiles);
    let pools = [1, 2].map(ThreadPool::new);
    for (n, size, channels, kernel, dilation, pad) in [
        (5, [33, 31], [48, 70], [3, 3], [1, 1], [1, 1]),
        (1, [14, 47], [272, 20], [1, 3], [1, 2], [0, 3]),
        (2, [30, 18], [32, 300], [5, 2], [2, 1], [1, 0]),
    ] {
        let out = [0, 1].map(|axis| size[axis] + 2 * pad[axis] - (kernel[axis] - 1) * dilation[axis]);
        let d = ConvDesc {
            n,
            h: size[0],
            w: size[1],
            c_in: channels[0],
            kh: kernel[0],
            kw: kernel[1],
            c_out: channels[1],
            oh: out[0],
            ow: out[1],
            stride: [1; 2],
            dilation,
            pad,
        };
        let (x, wide_x) = elements(n * d.h * d.w * d.c_in, 3);
        let (dy, wide_dy) = elements(n * d.oh * d.ow * d.c_out, 5);
        let len = d.kh * d.kw * d.c_in * d.c_out;
        let gradient = |pool: &ThreadPool, is_wide: bool| {
            let mut dw = vec![f32::NAN; len];
            let mut scratch = vec![f32::NAN; conv::weight_grad_scratch_len(&d, DType::Bf16, pool.threads())];
            let (ctx, output) = (Ctx::alone(Isa::Portable, pool), Output::new(&mut dw));
            match is_wide {
                true => conv::weight_grad(ctx, &d, &wide_x, &wide_dy, output, &mut scratch),
                false => conv::weight_grad(ctx, &d, &x[..], &dy[..], output, &mut scratch),
            }
            dw
        };
        let one = gradient(&pools[0], false);
        assert_close(&one, &gradient(&pools[0], true), &format!("{d:?}"));
        assert_eq!(one, gradient(&pools[1], false), "{d:?} depends on the number of threads");
    }
}

/// Pairs of elements of all magnitudes, subnormal ones and signed zeros among them, but finite.
#[cfg(target_arch = "x86_64")]
fn wild_pairs(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut half = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 40) as u16;
        let exponent = match state >> 61 {
            0 => 0,
            1 => 0x3f80 - 0x1400,
            _ => 0x3f80 - 0x0180 + (bits & 0x0180),
        };
        u32::from(bits & 0x807f | exponent)
    };
    (0..len).map(|_| f32::from_bits(half() | half() << 16)).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn dot_products_are_as_documented() {
    use crate::simd::{Avx512Bf16, Simd, SimdOp};
    struct Multiply {
        operands: [*const f32; 3],
        result: *mut f32,
    }
    impl SimdOp for Multiply {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: the caller's promise.
            unsafe {
                let [a, b, c] = self.operands.map(|v| S::load(v));
                S::store(self.result, S::multiply(a, b, c));
            }
        }
    }
    if !crate::peak::has_bf16(Isa::Avx512) {
        std::io::stderr().write_all(b"skipped: this processor has no dot products of bf16\n").unwrap();
        return;
    }
    const COUNT: usize = 16 * 4096;
    let (a, b, c) = (wild_pairs(COUNT, 1), wild_pairs(COUNT, 2), wild_pairs(COUNT, 3));
    let mut got = vec![0.0f32; COUNT];
    for i in (0..COUNT).step_by(16) {
        // SAFETY: the processor has the instructions, the vectors have the elements.
        unsafe {
            let operands = [&a, &b, &c].map(|v| v.as_ptr().add(i));
            Avx512Bf16::run_op(Multiply { operands, result: got.as_mut_ptr().add(i) });
        }
    }
    for i in 0..COUNT {
        let expected = emulated::dot2(a[i], b[i], c[i]);
        assert_eq!(
            got[i].to_bits(),
            expected.to_bits(),
            "{i}: {} is not {expected}, from {:x?}",
            got[i],
            [a[i], b[i], c[i]].map(f32::to_bits)
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_are_as_documented() {
    use crate::simd::{Amx, Simd, SimdOp, TILE_STEPS, TileProduct};
    static OFFSETS: [usize; 3] = [128, 0, 64];
    struct Product(TileProduct);
    impl SimdOp for Product {
        type Output = ();
        unsafe fn run<S: Simd>(self) {
            // SAFETY: the promise of whoever made it.
            unsafe { S::tile_product(&self.0) }
        }
    }
    if PanelFormat::of_bf16(Isa::Avx512) != PanelFormat::Tiles {
        std::io::stderr().write_all(b"skipped: this processor has no tiles of bf16\n").unwrap();
        return;
    }
    let (a, b, before) = (wild_pairs(32 * 48, 4), wild_pairs(48 * 32, 5), wild_pairs(32 * 40, 6));
    for (row_tiles, col_tiles) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        for (depth, accumulate) in [(16, false), (48, false), (48, true)] {
            let [mut got, mut expected] = [before.clone(), before.clone()];
            let product = |c: &mut [f32]| {
                Product(TileProduct {
                    row_tiles,
                    col_tiles,
                    depth,
                    a: a.as_ptr(),
                    a_stride: 48,
                    a_offsets: OFFSETS.as_ptr(),
                    b: b.as_ptr(),
                    c: c.as_mut_ptr(),
                    c_stride: 40,
                    accumulate,
                    prefetch: a.as_ptr(),
                    prefetch_pitch: 0,
                    prefetch_pieces: 1,
                })
            };
            // SAFETY: the processor has tiles; the vectors have the elements.
            unsafe {
                Amx::run_configured(product(&mut got));
                emulated::Tiles::run_op(product(&mut expected));
            }
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let what = format!(
                    "{row_tiles} by {col_tiles}, depth {depth}, {accumulate}: element {} of row {}",
                    i % 40,
                    i / 40
                );
                assert_eq!(got.to_bits(), expected.to_bits(), "{what} is {got}, not {expected}");
            }
        }
    }
    assert_eq!(TILE_STEPS, 16);
}

#[test]
#[ignore = "prints a table"]
fn errors_by_depth() {
    let pool = ThreadPool::new(2);
    let ctx = Ctx::alone(Isa::Portable, &pool);
    println!("| length of the reduction | `f32` | `vdpbf16ps` | `tdpbf16ps` |");
    for k in [64, 576, 2304, 4608] {
        let (m, n) = (32, 64);
        let desc = GemmDesc::new(m, n, k);
        let uniform = |len: usize, seed: u64| -> (Vec<bf16>, Vec<f32>) {
            let low: Vec<bf16> = (0..len as u64)
                .map(|i| bf16::from_f32(2.0 * bessemer_ir::philox::uniform(seed, 0, 0, i) - 1.0))
                .collect();
            let high = low.iter().map(|x| x.to_f32()).collect();
            (low, high)
        };
        let ((a, wide_a), (b, wide_b)) = (uniform(m * k, 1), uniform(k * n, 2));
        let exact = |row: usize, col: usize| -> f64 {
            (0..k).map(|i| f64::from(wide_a[row * k + i]) * f64::from(wide_b[i * n + col])).sum()
        };
        let mut scratch = vec![f32::NAN; scratch_len(&desc, 2)];
        let mut error = |a: TypedSlice<'_>, b: TypedSlice<'_>| {
            let mut c = vec![f32::NAN; m * n];
            gemm(ctx, &desc, a, b, Output::new(&mut c), &mut scratch, None);
            let (mut distance, mut norm) = (0.0, 0.0);
            for (i, &got) in c.iter().enumerate() {
                let exact = exact(i / n, i % n);
                distance += (f64::from(got) - exact).powi(2);
                norm += exact * exact;
            }
            f64::sqrt(distance / norm)
        };
        let plain = error((&wide_a).into(), (&wide_b).into());
        let [dot2, tiles] = FORMATS.map(|format| {
            emulated::set_format(format);
            error(a.as_slice().into(), b.as_slice().into())
        });
        println!("| {k} | {plain:.1e} | {dot2:.1e} | {tiles:.1e} |");
    }
}
