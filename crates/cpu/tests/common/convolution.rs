//! Convolutions by plain loops in `f64`.

#![allow(dead_code, reason = "each test program uses a part of it")]

use super::Random;
use bessemer_cpu::conv::ConvDesc;

/// Operands of all three directions.
pub(crate) struct Operands {
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub dy: Vec<f32>,
}

/// y, dx and dw.
pub(crate) struct Results<T> {
    pub y: Vec<T>,
    pub dx: Vec<T>,
    pub dw: Vec<T>,
}

impl Operands {
    pub(crate) fn random(random: &mut Random, d: &ConvDesc, groups: usize) -> Operands {
        let x = random.vector(d.n * d.h * d.w * d.c_in);
        let w = random.vector(d.kh * d.kw * d.c_in / groups * d.c_out);
        let dy = random.vector(d.n * d.oh * d.ow * d.c_out);
        Operands { x, w, dy }
    }

    /// Results to be filled.
    pub(crate) fn unfilled(&self) -> Results<f32> {
        let nan = |like: &[f32]| vec![f32::NAN; like.len()];
        Results { y: nan(&self.dy), dx: nan(&self.x), dw: nan(&self.w) }
    }

    pub(crate) fn expected(&self, d: &ConvDesc, groups: usize) -> Results<f64> {
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
}

fn positions(n: usize, h: usize, w: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..n * h * w).map(move |i| (i / (h * w), i / w % h, i % w))
}

/// Image, kernel, stride, dilation and paddings `[top, left]` and `[bottom, right]` of a convolution of one output channel.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    pub hw: [usize; 2],
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub pads: [[usize; 2]; 2],
}

impl Windows {
    /// The convolution whose output covers the padded image; `None` if the kernel is larger than that.
    pub(crate) fn conv(&self, n: usize, [c_in, c_out]: [usize; 2]) -> Option<ConvDesc> {
        let out = |i: usize| {
            let span = (self.kernel[i] - 1) * self.dilation[i] + 1;
            Some((self.hw[i] + self.pads[0][i] + self.pads[1][i]).checked_sub(span)? / self.stride[i] + 1)
        };
        let ([h, w], [kh, kw]) = (self.hw, self.kernel);
        let (oh, ow) = (out(0)?, out(1)?);
        let (stride, dilation, pad) = (self.stride, self.dilation, self.pads[0]);
        Some(ConvDesc { n, h, w, c_in, kh, kw, c_out, oh, ow, stride, dilation, pad })
    }
}
