//! What a graph means, in `f64`, one element at a time.

use super::graph::Role;
use super::{Geometry, Graph, Node, Pass, Pointwise, TensorId};

/// Position in `[A, B, C, D]`, where axes of one element have it for all.
fn at(dims: [usize; 4], index: [usize; 4]) -> usize {
    dims.iter().zip(index).fold(0, |sum, (&dim, i)| sum * dim + if dim == 1 { 0 } else { i })
}

fn indices(dims: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    let [_, b, c, d] = dims;
    (0..dims.iter().product::<usize>()).map(move |i| [i / (b * c * d), i / (c * d) % b, i / d % c, i % d])
}

impl Pointwise {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Pointwise::Add => a + b,
            Pointwise::Sub => a - b,
            Pointwise::Mul => a * b,
            // A NaN stays one.
            Pointwise::Relu => {
                if a < 0.0 {
                    0.0
                } else {
                    a
                }
            }
            Pointwise::Swish => a / (1.0 + (-a).exp()),
            Pointwise::ReluGradient => {
                if b > 0.0 {
                    a
                } else {
                    0.0
                }
            }
        }
    }
}

impl Graph {
    /// The outputs for these inputs, both in the order of the graph.
    pub fn evaluate(&self, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut values: Vec<Vec<f64>> = self.tensors.iter().map(|tensor| vec![0.0; tensor.elements()]).collect();
        for (id, input) in self.of_role(Role::Input).zip(inputs) {
            values[id.0].clone_from(input);
        }
        for (id, value) in self.values() {
            values[id.0] = vec![value.into()];
        }
        for node in &self.nodes {
            self.run(*node, &mut values);
        }
        self.of_role(Role::Output).map(|id| std::mem::take(&mut values[id.0])).collect()
    }

    fn run(&self, node: Node, values: &mut [Vec<f64>]) {
        match node {
            Node::Convolution { pass, x, w, y, geometry } => self.convolution(pass, [x, w, y], geometry, values),
            Node::Pointwise { function, a, b, y } => {
                let (from, second) = (self.get(a).dims, b.map(|b| (self.get(b).dims, b.0)));
                values[y.0] = indices(self.get(y).dims)
                    .map(|index| {
                        let b = second.map_or(0.0, |(dims, b)| values[b][at(dims, index)]);
                        function.apply(values[a.0][at(from, index)], b)
                    })
                    .collect();
            }
            Node::Statistics { x, sum, squares } => {
                values[sum.0] = self.channel_sums(x, |i| values[x.0][i]);
                values[squares.0] = self.channel_sums(x, |i| values[x.0][i].powi(2));
            }
            Node::NormGradients { x, dy, mean, deviation, scale, dscale, dshift, dy_factor, x_factor, offset } => {
                let results = self.norm_gradients([x, dy, mean, deviation, scale], values);
                for (id, numbers) in [dscale, dshift, dy_factor, x_factor, offset].into_iter().zip(results) {
                    values[id.0] = numbers;
                }
            }
            Node::Norm { x, scale, shift, epsilon, mean, deviation, y } => {
                let channels = self.get(x).dims[3];
                if let Some(epsilon) = epsilon {
                    (values[mean.0], values[deviation.0]) = self.moments(x, &values[x.0], values[epsilon.0][0]);
                }
                let norm = |(i, x): (usize, &f64)| {
                    let channel = i % channels;
                    let of = |id: TensorId| values[id.0][channel];
                    (x - of(mean)) * of(deviation) * of(scale) + of(shift)
                };
                values[y.0] = values[x.0].iter().enumerate().map(norm).collect();
            }
            Node::NormBackward { x, dy, mean, deviation, scale, dscale, dshift, dx } => {
                let [scales, shifts, dys, xs, offsets] = self.norm_gradients([x, dy, mean, deviation, scale], values);
                let both = values[dy.0].iter().zip(&values[x.0]).enumerate();
                let gradient = |(i, (dy, x)): (usize, (&f64, &f64))| {
                    let channel = i % dys.len();
                    dys[channel] * dy + xs[channel] * x + offsets[channel]
                };
                values[dx.0] = both.map(gradient).collect();
                (values[dscale.0], values[dshift.0]) = (scales, shifts);
            }
        }
    }

    /// Mean and reciprocal deviation `1 / sqrt(variance + epsilon)` of each channel of `x`.
    fn moments(&self, x: TensorId, values: &[f64], epsilon: f64) -> (Vec<f64>, Vec<f64>) {
        let channels = self.get(x).dims[3];
        let rows = (values.len() / channels) as f64;
        let means: Vec<f64> = self.channel_sums(x, |i| values[i]).iter().map(|sum| sum / rows).collect();
        let squares = self.channel_sums(x, |i| (values[i] - means[i % channels]).powi(2));
        let deviations = squares.iter().map(|sum| 1.0 / (sum / rows + epsilon).sqrt()).collect();
        (means, deviations)
    }

    /// Gradients of scale and shift, and for each channel the factors of `dy`, of `x`, and the offset of `dx`:
    /// `dx = scale deviation (dy - mean of dy - normal mean of (dy normal))`.
    fn norm_gradients(&self, [x, dy, mean, deviation, scale]: [TensorId; 5], values: &[Vec<f64>]) -> [Vec<f64>; 5] {
        let channels = self.get(x).dims[3];
        let rows = (self.get(x).elements() / channels) as f64;
        let of = |id: TensorId, channel: usize| values[id.0][channel];
        let shifts = self.channel_sums(x, |i| of(dy, i));
        let normal = |i: usize| (of(x, i) - of(mean, i % channels)) * of(deviation, i % channels);
        let scales = self.channel_sums(x, |i| of(dy, i) * normal(i));
        let dys: Vec<f64> = (0..channels).map(|c| of(scale, c) * of(deviation, c)).collect();
        let xs: Vec<f64> = (0..channels).map(|c| -dys[c] * of(deviation, c) * scales[c] / rows).collect();
        let offsets = (0..channels).map(|c| -dys[c] * shifts[c] / rows - xs[c] * of(mean, c)).collect();
        [scales, shifts, dys, xs, offsets]
    }

    /// Sums of `value` of every position of `x`, for each channel.
    fn channel_sums(&self, x: TensorId, value: impl Fn(usize) -> f64) -> Vec<f64> {
        let channels = self.get(x).dims[3];
        let mut sums = vec![0.0; channels];
        for i in 0..self.get(x).elements() {
            sums[i % channels] += value(i);
        }
        sums
    }

    fn convolution(&self, pass: Pass, ids: [TensorId; 3], geometry: Geometry, values: &mut [Vec<f64>]) {
        let Geometry { stride, padding, dilation } = geometry;
        let [x_dims, w_dims, y_dims] = ids.map(|id| self.get(id).dims);
        let [x, w, y] = ids.map(|id| id.0);
        let mut result = vec![0.0; values[[y, x, w][pass as usize]].len()];
        let filters_of_group = w_dims[0] / (x_dims[3] / w_dims[3]);
        for [n, p, q, k] in indices(y_dims) {
            for [_, r, s, c] in indices([1, w_dims[1], w_dims[2], w_dims[3]]) {
                let (row, col) = (p * stride[0] + r * dilation[0], q * stride[1] + s * dilation[1]);
                let inside = |position: usize, axis: usize| {
                    (padding[axis]..x_dims[1 + axis] + padding[axis]).contains(&position)
                };
                if !inside(row, 0) || !inside(col, 1) {
                    continue;
                }
                let channel = k / filters_of_group * w_dims[3] + c;
                let x_at = at(x_dims, [n, row - padding[0], col - padding[1], channel]);
                let (w_at, y_at) = (at(w_dims, [k, r, s, c]), at(y_dims, [n, p, q, k]));
                match pass {
                    Pass::Forward => result[y_at] += values[x][x_at] * values[w][w_at],
                    Pass::DataGradient => result[x_at] += values[y][y_at] * values[w][w_at],
                    Pass::WeightGradient => result[w_at] += values[y][y_at] * values[x][x_at],
                }
            }
        }
        values[[y, x, w][pass as usize]] = result;
    }
}
