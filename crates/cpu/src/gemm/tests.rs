//! Products of `bf16` pairs, in plain arithmetic on the portable instruction set, beside `f32` products of the same numbers.

use super::{Ctx, GemmDesc, Numbers, Output, Weights, gemm, pack_b, packed_b_len, scratch_len};
use crate::conv::{self, ConvDesc};
use crate::isa::Isa;
use crate::threads::ThreadPool;
use half::bf16;

/// Numbers that `bf16` holds exactly, in both types.
fn numbers(len: usize, seed: usize) -> (Vec<bf16>, Vec<f32>) {
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
    let pool = ThreadPool::new(2);
    let ctx = Ctx { isa: Isa::Portable, pool: &pool };
    for (m, n, k, batch) in
        [(70, 45, 91, 1), (1, 300, 601, 1), (33, 20, 2, 1), (9, 20, 33, 17), (60, 70, 1100, 2), (400, 901, 45, 1)]
    {
        for layout in 0..4 {
            let desc = GemmDesc::new(m, n, k).transposed(layout & 1 != 0, layout & 2 != 0).batched(batch);
            let (a, wide_a) = numbers(batch * m * k, 1);
            let (b, wide_b) = numbers(batch * k * n, 2);
            let mut scratch = vec![f32::NAN; scratch_len(&desc, 2)];
            let mut expected = vec![f32::NAN; batch * m * n];
            gemm(ctx, &desc, &wide_a, &wide_b, Output::new(&mut expected), &mut scratch, None);
            let mut c = vec![f32::NAN; batch * m * n];
            let b = Numbers::from(b.as_slice());
            gemm(ctx, &desc, a.as_slice(), b, Output::new(&mut c), &mut scratch, None);
            assert_close(&c, &expected, &format!("{desc:?}"));
            if super::takes_packed_b(&desc) {
                let mut packed = vec![f32::NAN; packed_b_len(&desc)];
                pack_b(ctx, &desc, b, &mut packed);
                let mut again = vec![f32::NAN; batch * m * n];
                gemm(ctx, &desc, a.as_slice(), Weights::Packed(&packed), Output::new(&mut again), &mut scratch, None);
                assert_eq!(c, again, "{desc:?}, packed before");
            }
        }
    }
}

#[test]
fn convolutions() {
    let pool = ThreadPool::new(2);
    let ctx = Ctx { isa: Isa::Portable, pool: &pool };
    for (channels, kernel, stride, pad) in
        [([3, 7], 5, 2, 2), ([16, 20], 3, 1, 1), ([9, 12], 1, 2, 0), ([6, 5], 3, 3, 1)]
    {
        let (h, w) = (11, 9);
        let out = |size: usize| (size + 2 * pad - kernel) / stride + 1;
        let d = ConvDesc {
            n: 2,
            h,
            w,
            c_in: channels[0],
            kh: kernel,
            kw: kernel,
            c_out: channels[1],
            oh: out(h),
            ow: out(w),
            stride: [stride; 2],
            dilation: [1; 2],
            pad: [pad; 2],
        };
        let (x, wide_x) = numbers(d.n * h * w * d.c_in, 3);
        let (weights, wide_weights) = numbers(kernel * kernel * d.c_in * d.c_out, 4);
        let (dy, wide_dy) = numbers(d.n * d.oh * d.ow * d.c_out, 5);
        let (x, weights, dy) = (Numbers::from(&x[..]), Numbers::from(&weights[..]), Numbers::from(&dy[..]));
        let nan = |len: usize| vec![f32::NAN; len];

        let (mut y, mut expected) = (nan(wide_dy.len()), nan(wide_dy.len()));
        let mut scratch = nan(conv::forward_scratch_len(&d, 2));
        conv::forward(ctx, &d, x, weights, Output::new(&mut y), &mut scratch, None);
        conv::forward(ctx, &d, &wide_x, &wide_weights, Output::new(&mut expected), &mut scratch, None);
        assert_close(&y, &expected, &format!("forward {d:?}"));

        let (mut dx, mut expected) = (nan(wide_x.len()), nan(wide_x.len()));
        let mut scratch = nan(conv::data_grad_scratch_len(&d, 2));
        conv::data_grad(ctx, &d, dy, weights, Output::new(&mut dx), &mut scratch, None);
        conv::data_grad(ctx, &d, &wide_dy, &wide_weights, Output::new(&mut expected), &mut scratch, None);
        assert_close(&dx, &expected, &format!("data gradient {d:?}"));

        let (mut dw, mut expected) = (nan(wide_weights.len()), nan(wide_weights.len()));
        let mut scratch = nan(conv::weight_grad_scratch_len(&d, 2));
        conv::weight_grad(ctx, &d, x, dy, Output::new(&mut dw), &mut scratch);
        conv::weight_grad(ctx, &d, &wide_x, &wide_dy, Output::new(&mut expected), &mut scratch);
        assert_close(&dw, &expected, &format!("weight gradient {d:?}"));
    }
}
