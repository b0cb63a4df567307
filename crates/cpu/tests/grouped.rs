//! Convolutions in groups in all three directions against plain loops in `f64`.

mod common;

use bessemer_cpu::conv::ConvDesc;
use bessemer_cpu::conv::grouped::{
    GroupedDesc, data_grad, data_grad_row_blocks, data_grad_scratch_len, forward, forward_row_blocks,
    forward_scratch_len, weight_grad, weight_grad_scratch_len,
};
use bessemer_cpu::gemm::{Ctx, Output};
use bessemer_cpu::isa::Isa;
use bessemer_cpu::threads::ThreadPool;
use common::{Coverage, Random, assert_close};

struct Case {
    d: GroupedDesc,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
}

/// y, dx and dw.
struct Results<T> {
    y: Vec<T>,
    dx: Vec<T>,
    dw: Vec<T>,
}

impl Case {
    fn new(random: &mut Random, d: GroupedDesc) -> Case {
        let (x, w, dy) = (random.vector(d.input_len()), random.vector(d.weight_len()), random.vector(d.output_len()));
        Case { d, x, w, dy }
    }

    fn expected(&self) -> Results<f64> {
        let GroupedDesc { conv: d, groups } = &self.d;
        let (group_in, group_out) = (d.c_in / groups, d.c_out / groups);
        let mut r = Results { y: vec![0.0; self.dy.len()], dx: vec![0.0; self.x.len()], dw: vec![0.0; self.w.len()] };
        let source = |p: usize, tap: usize, axis: usize, size: usize| {
            let at = (p * d.stride[axis] + tap * d.dilation[axis]).checked_sub(d.pad[axis])?;
            (at < size).then_some(at)
        };
        for (out, (n, p, q)) in positions(d.n, d.oh, d.ow).enumerate() {
            for (tap, (_, i, j)) in positions(1, d.kh, d.kw).enumerate() {
                let (Some(y), Some(x)) = (source(p, i, 0, d.h), source(q, j, 1, d.w)) else { continue };
                let pixel = (n * d.h + y) * d.w + x;
                for (co, ci) in (0..d.c_out).flat_map(|co| (0..group_in).map(move |ci| (co, ci))) {
                    let x = pixel * d.c_in + co / group_out * group_in + ci;
                    let w = (tap * group_in + ci) * d.c_out + co;
                    let y = out * d.c_out + co;
                    r.y[y] += f64::from(self.x[x]) * f64::from(self.w[w]);
                    r.dx[x] += f64::from(self.dy[y]) * f64::from(self.w[w]);
                    r.dw[w] += f64::from(self.dy[y]) * f64::from(self.x[x]);
                }
            }
        }
        r
    }

    fn run(&self, isa: Isa, pool: &ThreadPool) -> Results<f32> {
        let (d, ctx, threads) = (&self.d, Ctx { isa, pool }, pool.threads());
        let nan = |len: usize| vec![f32::NAN; len];
        let mut r = Results { y: nan(self.dy.len()), dx: nan(self.x.len()), dw: nan(self.w.len()) };

        let coverage = Coverage::new(d.conv.n * d.conv.oh * d.conv.ow, d.conv.c_out, forward_row_blocks(d));
        let scratch = &mut nan(forward_scratch_len(d, threads));
        forward(ctx, d, &self.x, &self.w, Output::new(&mut r.y), scratch, Some(&coverage));
        coverage.assert_once();

        let coverage = Coverage::new(d.conv.n * d.conv.h * d.conv.w, d.conv.c_in, data_grad_row_blocks(d));
        let scratch = &mut nan(data_grad_scratch_len(d, threads));
        data_grad(ctx, d, &self.dy, &self.w, Output::new(&mut r.dx), scratch, Some(&coverage));
        coverage.assert_once();

        let scratch = &mut nan(weight_grad_scratch_len(d, threads));
        weight_grad(ctx, d, &self.x, &self.dy, Output::new(&mut r.dw), scratch);
        r
    }

    fn check(&self) {
        let GroupedDesc { conv: d, groups } = &self.d;
        let expected = self.expected();
        for isa in Isa::available() {
            let one = self.run(isa, &ThreadPool::new(1));
            let two = self.run(isa, &ThreadPool::new(2));
            let taps = d.kh * d.kw;
            let what = |direction: &str| format!("{isa} {direction} {:?}", self.d);
            assert_close(&one.y, &expected.y, taps * d.c_in / groups, &what("forward"));
            assert_close(&one.dx, &expected.dx, taps * d.c_out / groups, &what("data gradient"));
            assert_close(&one.dw, &expected.dw, d.n * d.oh * d.ow, &what("weight gradient"));
            assert_eq!(one.y, two.y, "{} depends on the number of threads", what("forward"));
            assert_eq!(one.dx, two.dx, "{} depends on the number of threads", what("data gradient"));
            assert_eq!(one.dw, two.dw, "{} depends on the number of threads", what("weight gradient"));
        }
    }
}

fn positions(n: usize, h: usize, w: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..n * h * w).map(move |i| (i / (h * w), i / w % h, i % w))
}

/// A convolution whose output covers the image with paddings `[top, left]` and `[bottom, right]`.
fn grouped(
    [n, h, w]: [usize; 3],
    [groups, c_in, c_out]: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pads: [[usize; 2]; 2],
) -> Option<GroupedDesc> {
    let out = |i: usize| {
        let span = (kernel[i] - 1) * dilation[i] + 1;
        Some(([h, w][i] + pads[0][i] + pads[1][i]).checked_sub(span)? / stride[i] + 1)
    };
    let [kh, kw] = kernel;
    let (c_in, c_out) = (groups * c_in, groups * c_out);
    let (oh, ow) = (out(0)?, out(1)?);
    Some(GroupedDesc {
        conv: ConvDesc { n, h, w, c_in, kh, kw, c_out, oh, ow, stride, dilation, pad: pads[0] },
        groups,
    })
}

/// Checks `cases` random problems with `[groups, channels in, channels out]` of the groups up to those.
fn check_random(seed: u64, cases: usize, most: [usize; 3]) {
    let mut random = Random(seed);
    let mut done = 0;
    while done < cases {
        let mut pair = |low, high| [random.between(low, high), random.between(low, high)];
        let ([h, _], [w, _], kernel) = (pair(1, 19), pair(1, 33), pair(1, 6));
        let (stride, dilation, pads) = (pair(1, 3), pair(1, 2), [pair(0, 4), pair(0, 4)]);
        let n = random.between(1, 3);
        let channels = most.map(|most| random.between(1, most));
        if let Some(d) = grouped([n, h, w], channels, kernel, stride, dilation, pads) {
            Case::new(&mut random, d).check();
            done += 1;
        }
    }
}

#[test]
fn random_depthwise() {
    check_random(11, 150, [150, 1, 1]);
}

#[test]
fn random_groups() {
    check_random(12, 80, [9, 5, 20]);
}

/// Sizes of networks: square windows and strides, neighbouring taps, some vectors of channels.
#[test]
fn network_shapes() {
    let mut random = Random(13);
    for kernel in [3, 5] {
        for stride in [1, 2] {
            for (size, channels) in [(7, 208), (14, 96), (28, 40), (31, 13), (64, 16)] {
                for pads in [[[kernel / 2; 2]; 2], [[kernel / 2 - 1; 2], [kernel / 2; 2]], [[0; 2]; 2]] {
                    let d = grouped([2, size, size], [channels, 1, 1], [kernel; 2], [stride; 2], [1; 2], pads);
                    Case::new(&mut random, d.expect("the window fits")).check();
                }
            }
        }
    }
}

#[test]
fn output_size_may_leave_input_unread_or_pad_beyond_it() {
    let mut random = Random(14);
    for (oh, ow) in [(2, 3), (6, 7)] {
        let d = grouped([2, 8, 9], [20, 1, 1], [3, 3], [2, 2], [1, 1], [[1, 0], [1, 1]]).expect("the window fits");
        Case::new(&mut random, GroupedDesc { conv: ConvDesc { oh, ow, ..d.conv }, ..d }).check();
    }
}
