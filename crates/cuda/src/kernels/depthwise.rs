//! Depthwise convolutions of images `[N, H, W, C]` with weights `[KH, KW, 1, C]`, and their gradients. A thread takes neighbouring channels of
//! some outputs that lie beside each other in a row, so that an input is loaded once for all of them that it is part of. Sums are `f32`.

use super::{for_vectors, lanes_of, without_hash};
use crate::kgen::{Kernel, Parameter, c_type, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::conv::{Geometry, Window};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Outputs of a thread beside each other, a multiple of every stride.
const RUN: usize = 4;
/// The longest window along an axis.
const LONGEST_WINDOW: usize = 7;
/// Channels of a thread, at most.
const LANES: usize = 4;
/// Sums of a thread over positions, one for each channel of each weight.
const SUMS: usize = 50;
/// Threads that are enough for any device.
const ENOUGH_THREADS: usize = 1 << 17;

/// A depthwise convolution of elements of one type.
pub(crate) struct Depthwise<'a> {
    of: &'a Geometry,
    ty: DType,
}

/// The gradient of the weights: sums of parts of the positions, then the sum of the parts.
pub(crate) struct Parts {
    /// From `x` and `dy` to `f32[parts, KH * KW * C]`.
    pub kernel: Kernel,
    pub parts: usize,
}

/// One row of the elements that go into a run of results: for each offset from the run's first element the results, and the column of
/// the window by which the element is multiplied for each.
type Taps = BTreeMap<i64, Vec<(usize, usize)>>;

/// How results are made of the elements of a tensor.
struct Gather {
    name: &'static str,
    /// The tensor.
    from: &'static str,
    /// Of the results, and of the tensor.
    heights: [usize; 2],
    widths: [usize; 2],
    /// Declares the `row` of the tensor that the row `k` of the window reads for the row `at_row` of the results, if there is one.
    row: String,
    /// The column of the tensor that offsets are from, for the column `at_col` of the results.
    first: String,
    taps: Taps,
}

impl<'a> Depthwise<'a> {
    /// `None` for convolutions of another kind, and for windows that are too long or have gaps.
    pub(crate) fn new(of: &'a Geometry, ty: DType) -> Option<Depthwise<'a>> {
        let fits = |window: &Window| {
            window.dilation == 1 && RUN.is_multiple_of(window.stride) && window.kernel <= LONGEST_WINDOW
        };
        (of.is_depthwise() && fits(&of.height) && fits(&of.width)).then_some(Depthwise { of, ty })
    }

    /// Of the operands.
    pub(crate) fn ty(&self) -> DType {
        self.ty
    }

    fn lanes(&self) -> usize {
        lanes_of(self.ty, self.of.channels).min(LANES)
    }

    fn weights(&self) -> usize {
        self.of.height.kernel * self.of.width.kernel * self.of.channels
    }

    fn memory(&self, name: &str, elements: usize) -> Parameter {
        Parameter::input(name, self.ty, elements)
    }

    /// Declares `name` as the elements from `at` on.
    fn load(&self, name: &str, at: &str, lanes: usize) -> String {
        format!("float {name}[{lanes}];\nload<{}, {lanes}>({at}, {name});\n", c_type(self.ty))
    }

    /// If the row that the row `k` of the window reads is one of the tensor's: `head`, then the `body` of each result and column of the
    /// window, for each lane `i` of the `value` that they take; what of it lies before or behind the row is left out.
    fn over_row(&self, gather: &Gather, lanes: usize, head: &str, body: impl Fn(usize, usize) -> String) -> String {
        let Gather { from, heights: [_, height], widths: [_, width], row, taps, .. } = gather;
        let (channels, of_type) = (self.of.channels, c_type(self.ty));
        let mut text = format!(
            "{row}if (row >= {height}u) continue;\n{head}\
             const {of_type}* const elements = {from} + ((image * {height}u + row) * {width}u + first) * {channels}u + c;\n"
        );
        for (offset, parts) in taps {
            let (sign, far) = (if *offset < 0 { '-' } else { '+' }, offset.unsigned_abs());
            let of_lane: String = parts.iter().map(|&(result, column)| body(result, column)).collect();
            let load = self.load("value", &format!("elements {sign} {}", far * channels as u64), lanes);
            let there = indented(&(load + &for_lanes(lanes, &of_lane)));
            // Without a sign a column before the first one is behind the last one.
            let _ = write!(text, "if (first {sign} {far}u < {width}u) {{\n{there}}}\n");
        }
        text
    }

    /// Where outputs read `x`.
    fn of_outputs(&self) -> Gather {
        let Geometry { height, width, .. } = self.of;
        let mut taps = Taps::new();
        for output in 0..RUN {
            for column in 0..width.kernel {
                let offset = (output * width.stride + column) as i64 - width.low as i64;
                taps.entry(offset).or_default().push((output, column));
            }
        }
        Gather {
            name: "depthwise",
            from: "x",
            heights: [height.output, height.input],
            widths: [width.output, width.input],
            row: format!("const u32 row = at_row * {}u + k - {}u;\n", height.stride, height.low),
            first: format!("at_col * {}u", width.stride),
            taps,
        }
    }

    /// From `x` and the weights to the output, of type `to`.
    pub(crate) fn forward(&self, to: DType) -> Kernel {
        self.kernel(&self.of_outputs(), to)
    }

    /// From the gradient of the output and the weights to that of `x`, of type `to`.
    pub(crate) fn data_gradient(&self, to: DType) -> Kernel {
        let Geometry { height, width, .. } = self.of;
        let mut taps = Taps::new();
        for element in 0..RUN {
            for column in 0..width.kernel {
                let padded = (element + width.low) as i64 - column as i64;
                if padded.rem_euclid(width.stride as i64) == 0 {
                    taps.entry(padded.div_euclid(width.stride as i64)).or_default().push((element, column));
                }
            }
        }
        let row = format!(
            "const u32 padded = at_row + {low}u - k;\n\
             if (at_row + {low}u < k || padded % {stride}u != 0) continue;\n\
             const u32 row = padded / {stride}u;\n",
            low = height.low,
            stride = height.stride
        );
        let gather = Gather {
            name: "depthwise_data_gradient",
            from: "dy",
            heights: [height.input, height.output],
            widths: [width.input, width.output],
            row,
            first: format!("at_col / {}u", width.stride),
            taps,
        };
        self.kernel(&gather, to)
    }

    /// From the tensor and the weights to results of type `to`.
    fn kernel(&self, gather: &Gather, to: DType) -> Kernel {
        let Gather { name, from, heights: [height, from_height], widths: [width, from_width], first, .. } = gather;
        let (Geometry { batch, channels, .. }, height, width) = (*self.of, *height, *width);
        let (lanes, runs, window) = (self.lanes(), width.div_ceil(RUN), &self.of.width);
        let each = channels / lanes;
        let (of_type, of_window) = (c_type(self.ty), window.kernel * channels);
        let mut weights = format!("const {of_type}* const weights = w + k * {of_window}u + c;\n");
        for column in 0..window.kernel {
            weights += &self.load(&format!("w{column}"), &format!("weights + {}", column * channels), lanes);
        }
        let of_row = self
            .over_row(gather, lanes, &weights, |result, column| format!("y{result}[i] += value[i] * w{column}[i];\n"));
        let mut text = format!(
            "const u32 c = v % {each}u * {lanes}u, at_col = v / {each}u % {runs}u * {RUN}u, first = {first};\n\
             const u32 at_row = v / {over_row}u % {height}u, image = v / {over_image}u;\n",
            over_row = each * runs,
            over_image = each * runs * height
        );
        for output in 0..RUN {
            let _ = writeln!(text, "float y{output}[{lanes}] = {{}};");
        }
        let _ = write!(
            text,
            "#pragma unroll 1\nfor (u32 k = 0; k < {}u; ++k) {{\n{}}}\n\
             const u32 at = ((image * {height}u + at_row) * {width}u + at_col) * {channels}u + c;\n",
            self.of.height.kernel,
            indented(&of_row)
        );
        for output in 0..RUN {
            let there =
                if width.is_multiple_of(RUN) { String::new() } else { format!("if (at_col + {output}u < {width}u) ") };
            let (to, at) = (c_type(to), output * channels);
            let _ = writeln!(text, "{there}store<{to}, {lanes}>(y + at + {at}u, y{output});");
        }
        let parameters = vec![
            self.memory(from, batch * from_height * from_width * channels),
            self.memory("w", self.weights()),
            Parameter::output("y", to, batch * height * width * channels),
        ];
        for_vectors(name, parameters, batch * height * runs * each, &text)
    }

    /// From `x` and the gradient of the output to that of the weights.
    pub(crate) fn weight_gradient(&self) -> Parts {
        let Geometry { batch, height, width, channels, .. } = self.of;
        let taps = height.kernel * width.kernel;
        let lanes = [4, 2].into_iter().find(|lanes| lanes * taps <= SUMS && lanes <= &self.lanes()).unwrap_or(1);
        let each = channels / lanes;
        let rows = batch * height.output;
        // The parts are to be no more than a half of what is read.
        let read = (self.of.x_shape().elements() + self.of.y_shape().elements()) * self.ty.size();
        let most = (read / (2 * self.weights() * DType::F32.size())).min(ENOUGH_THREADS / each);
        let of_part = rows.div_ceil(most.clamp(1, rows));
        let parts = rows.div_ceil(of_part);

        let of_type = c_type(self.ty);
        let mut of_run =
            format!("const {of_type}* const given = dy + (at * {}u + at_col) * {channels}u + c;\n", width.output);
        for output in 0..RUN {
            let load = self.load("value", &format!("given + {}", output * channels), lanes);
            let _ = write!(
                of_run,
                "float d{output}[{lanes}] = {{}};\nif (at_col + {output}u < {}u) {{\n{}}}\n",
                width.output,
                indented(&(load + &for_lanes(lanes, &format!("d{output}[i] = value[i];\n"))))
            );
        }
        let gather = self.of_outputs();
        let _ = writeln!(of_run, "const u32 first = {};", gather.first);
        let of_row = self.over_row(&gather, lanes, "", |output, column| {
            format!("sum[(k * {} + {column}) * {lanes} + i] += value[i] * d{output}[i];\n", width.kernel)
        });
        let _ =
            write!(of_run, "#pragma unroll\nfor (int k = 0; k < {}; ++k) {{\n{}}}\n", height.kernel, indented(&of_row));
        let text = format!(
            "const u32 c = v % {each}u * {lanes}u, part = v / {each}u;\n\
             float sum[{all}] = {{}};\n\
             const u32 begin = part * {of_part}u, end = begin + {of_part}u < {rows}u ? begin + {of_part}u : {rows}u;\n\
             #pragma unroll 1\n\
             for (u32 at = begin; at < end; ++at) {{\n    \
             const u32 image = at / {output}u, at_row = at % {output}u;\n\
             #pragma unroll 1\n    \
             for (u32 at_col = 0; at_col < {across}u; at_col += {RUN}u) {{\n{run}    }}\n}}\n\
             #pragma unroll\n\
             for (int k = 0; k < {taps}; ++k) store<float, {lanes}>(y + (part * {taps}u + k) * {channels}u + c, sum + k * {lanes});\n",
            all = taps * lanes,
            output = height.output,
            across = width.output,
            run = indented(&indented(&of_run)),
        );
        let parameters = vec![
            self.memory("x", self.of.x_shape().elements()),
            self.memory("dy", self.of.y_shape().elements()),
            Parameter::output("y", DType::F32, parts * self.weights()),
        ];
        let kernel = without_hash("depthwise_weight_gradient", parameters, ("v", parts * each), &text);
        // The compiler leaves room for three blocks otherwise, for which operands of `f32` do not always fit into registers.
        let kernel = if self.ty == DType::F32 { kernel.beside(2) } else { kernel };
        Parts { kernel: kernel.named_by_content(), parts }
    }
}

/// `body` for each lane `i`.
fn for_lanes(lanes: usize, body: &str) -> String {
    format!("#pragma unroll\nfor (int i = 0; i < {lanes}; ++i) {{\n{}}}\n", indented(body))
}
