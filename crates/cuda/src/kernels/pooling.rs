//! Pooling of images `[N, H, W, C]`, neighbouring channels together in a thread. Gradients are gathered: each element of the input
//! looks for the windows that it lies in.

use super::{for_vectors, lanes_of};
use crate::kgen::{Kernel, Parameter, c_type, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::conv::Window;
use bessemer_ir::ops::pool::Geometry;
use std::iter::successors;
use std::ops::RangeInclusive;

/// `body` for each element of the window at `at`, whose position along the axis is called `name`.
fn for_window(name: &str, at: &str, window: &Window, body: &str) -> String {
    let Window { input, kernel, stride, low, .. } = window;
    format!(
        "for (u32 k{name} = 0; k{name} < {kernel}u; ++k{name}) {{\n    \
         const u32 {name} = {at} * {stride}u + k{name} - {low}u;\n    \
         if ({name} >= {input}u) continue;\n{body}}}\n",
        body = indented(body)
    )
}

/// `body` for each window, in ascending order, in which the element at `at` lies; the window is called `name`, the place of the
/// element in it `k{name}`.
fn for_windows(name: &str, at: &str, window: &Window, body: &str) -> String {
    let Window { output, kernel, stride, low, .. } = window;
    let padded = format!("({at} + {low}u)");
    format!(
        "const u32 first_{name} = {padded} < {kernel}u ? 0u : ({padded} - {kernel}u) / {stride}u + 1u;\n\
         const u32 last_{name} = {padded} / {stride}u < {output}u ? {padded} / {stride}u : {last}u;\n\
         for (u32 {name} = first_{name}; {name} <= last_{name}; ++{name}) {{\n    \
         const u32 k{name} = {padded} - {name} * {stride}u;\n{body}}}\n",
        body = indented(body),
        last = output - 1
    )
}

/// Where the channels from `c3` on at `(row, col)` of an image lie, of the side of the input or of the output.
fn position(height: usize, width: usize, channels: usize, row: &str, col: &str) -> String {
    format!("((c0 * {height}u + {row}) * {width}u + {col}) * {channels}u + c3")
}

/// Windows in which the elements of a block lie that is as long as windows are apart, from the block's own number on.
fn windows_of_blocks(window: &Window) -> RangeInclusive<isize> {
    let [kernel, stride, low] = [window.kernel, window.stride, window.low].map(|size| size as isize);
    -((kernel - 1 - low).div_euclid(stride))..=(stride - 1 + low).div_euclid(stride)
}

/// Where the element `at` of a block lies in the window that is so far from the block's own number, if it lies in it.
fn place_of(window: &Window, at: usize, distance: isize) -> Option<usize> {
    let place = (at + window.low) as isize - distance * window.stride as isize;
    usize::try_from(place).ok().filter(|place| *place < window.kernel)
}

/// Neighbouring channels of a thread that has a block of elements for each.
fn lanes_of_blocks(ty: DType, of: &Geometry) -> usize {
    const MOST: usize = 32;
    let most = (MOST / (of.height.stride * of.width.stride)).max(1);
    let mut halves = successors(Some(lanes_of(ty, of.channels)), |lanes| Some(lanes / 2));
    halves.find(|lanes| *lanes <= most).expect("one lane is no more than that")
}

/// How a kernel goes through the channels of an image.
struct Form<'a> {
    ty: DType,
    of: &'a Geometry,
    /// Channels of a thread.
    lanes: usize,
}

impl<'a> Form<'a> {
    fn new(ty: DType, of: &'a Geometry) -> Form<'a> {
        Form { ty, of, lanes: lanes_of(ty, of.channels) }
    }

    fn at_x(&self, row: &str, col: &str) -> String {
        position(self.of.height.input, self.of.width.input, self.of.channels, row, col)
    }

    fn at_y(&self, row: &str, col: &str) -> String {
        position(self.of.height.output, self.of.width.output, self.of.channels, row, col)
    }

    /// Declares `name` as the elements of `tensor` at a position.
    fn load(&self, name: &str, tensor: &str, at: &str) -> String {
        self.load_as(self.ty, name, tensor, at)
    }

    fn load_as(&self, ty: DType, name: &str, tensor: &str, at: &str) -> String {
        let (lanes, c_type) = (self.lanes, c_type(ty));
        format!("float {name}[{lanes}];\nload<{c_type}, {lanes}>({tensor} + {at}, {name});\n")
    }

    /// Declares `name` as numbers that are all alike.
    fn filled(&self, name: &str, value: &str) -> String {
        format!("float {name}[{}];\n", self.lanes) + &self.each(&format!("{name}[k] = {value};\n"))
    }

    /// `body` for each lane `k`.
    fn each(&self, body: &str) -> String {
        format!("#pragma unroll\nfor (int k = 0; k < {}; ++k) {{\n{}}}\n", self.lanes, indented(body))
    }

    fn input(&self, name: &str, elements: usize) -> Parameter {
        Parameter::input(name, self.ty, elements)
    }

    /// Declares the channels from `c3` on, and the position `(c1, c2)` in image `c0`, of the vector `v`, where images have so many rows and columns.
    fn coordinates(&self, [height, width]: [usize; 2]) -> String {
        let (each, lanes) = (self.of.channels / self.lanes, self.lanes);
        format!(
            "const u32 c3 = v % {each}u * {lanes}u;\n\
             const u32 c2 = v / {each}u % {width}u, c1 = v / {over_width}u % {height}u, c0 = v / {over_height}u;\n",
            over_width = each * width,
            over_height = each * width * height
        )
    }

    /// `body` for the channels from `c3` on of each `(c1, c2)` of image `c0`, which has so many rows and columns; `result` of it goes
    /// to `y`.
    fn kernel(&self, name: &str, inputs: Vec<Parameter>, ty: DType, [height, width]: [usize; 2], body: &str) -> Kernel {
        let Form { of: Geometry { batch, channels, .. }, lanes, .. } = self;
        let elements = batch * height * width * channels;
        let c_type = c_type(ty);
        let head = self.coordinates([height, width]);
        let text = format!("{head}{body}store<{c_type}, {lanes}>(y + v * {lanes}u, result);\n");
        let parameters = inputs.into_iter().chain([Parameter::output("y", ty, elements)]).collect();
        for_vectors(name, parameters, elements / lanes, &text)
    }

    /// A kernel for each element of the input.
    fn over_x(&self, name: &str, inputs: Vec<Parameter>, body: &str) -> Kernel {
        self.kernel(name, inputs, self.ty, [self.of.height.input, self.of.width.input], body)
    }

    /// A kernel for each element of the output.
    fn over_y(&self, name: &str, inputs: Vec<Parameter>, ty: DType, body: &str) -> Kernel {
        self.kernel(name, inputs, ty, [self.of.height.output, self.of.width.output], body)
    }

    /// `body` for the elements `value` of the input under the window `(c1, c2)` of the output.
    fn over_elements(&self, body: &str) -> String {
        let inner = self.load("value", "x", &self.at_x("row", "col")) + body;
        for_window("row", "c1", &self.of.height, &for_window("col", "c2", &self.of.width, &inner))
    }

    /// The gradient of `x` by blocks of as many rows and columns as windows are apart, which all lie alike in the windows around them: a
    /// thread reads each of these windows once.
    fn gather_places(&self, place_type: DType) -> Kernel {
        let Geometry { height, width, batch, channels } = self.of;
        let form = Form { lanes: lanes_of_blocks(self.ty, self.of), ..*self };
        let (lanes, each) = (form.lanes, channels / form.lanes);
        let [rows, cols] = [height, width].map(|window| window.input.div_ceil(window.stride));
        let mut text = form.coordinates([rows, cols]);
        let elements = || (0..height.stride).flat_map(|down| (0..width.stride).map(move |across| (down, across)));
        for (down, across) in elements() {
            text += &form.filled(&format!("result_{down}_{across}"), "0.0f");
        }
        for down in windows_of_blocks(height) {
            for across in windows_of_blocks(width) {
                let at = form.at_y("row", "col");
                let mut window = form.load_as(place_type, "place", "places", &at) + &form.load("given", "dy", &at);
                for (a, b) in elements() {
                    let inside = [place_of(height, a, down), place_of(width, b, across)];
                    let [Some(in_row), Some(in_col)] = inside else { continue };
                    let own = in_row * width.kernel + in_col;
                    window += &form.each(&format!("if (place[k] == {own}.0f) result_{a}_{b}[k] += given[k];\n"));
                }
                text += &format!(
                    "{{\n    const u32 row = c1 + (u32){down}, col = c2 + (u32){across};\n    \
                     if (row < {}u && col < {}u) {{\n{}    }}\n}}\n",
                    height.output,
                    width.output,
                    indented(&indented(&window))
                );
            }
        }
        let c_type = c_type(self.ty);
        for (a, b) in elements() {
            let (row, col) = (format!("(c1 * {}u + {a}u)", height.stride), format!("(c2 * {}u + {b}u)", width.stride));
            text += &format!(
                "if ({row} < {}u && {col} < {}u) store<{c_type}, {lanes}>(dx + {}, result_{a}_{b});\n",
                height.input,
                width.input,
                form.at_x(&row, &col)
            );
        }
        let (x, y) = sizes(self.of);
        let inputs = [Parameter::input("places", place_type, y), form.input("dy", y)];
        let parameters = inputs.into_iter().chain([Parameter::output("dx", self.ty, x)]).collect();
        for_vectors("max_pool_grad", parameters, batch * rows * cols * each, &text)
    }

    /// `body` for each window `(row, col)` of the output in which the element `(c1, c2)` of the input lies.
    fn over_windows(&self, body: &str) -> String {
        for_windows("row", "c1", &self.of.height, &for_windows("col", "c2", &self.of.width, body))
    }
}

fn sizes(of: &Geometry) -> (usize, usize) {
    (of.x_shape().elements(), of.y_shape().elements())
}

/// From `x` to `y`.
pub(crate) fn max(ty: DType, of: &Geometry) -> Kernel {
    let (form, (x, _)) = (Form::new(ty, of), sizes(of));
    let larger = form.each("if (value[k] > result[k] || value[k] != value[k]) result[k] = value[k];\n");
    let text = form.filled("result", "max_of::identity()") + &form.over_elements(&larger);
    form.over_y("max_pool", vec![form.input("x", x)], ty, &text)
}

/// The gradient of max pooling: the first largest element of each window takes the window's.
pub(crate) struct MaxGrad {
    /// From `x` and the maxima of its windows to the place in its window of the first element that is the maximum.
    pub places: Kernel,
    /// From these places and the gradient `dy` to that of `x`.
    pub gather: Kernel,
    /// Type of the places, one for each maximum.
    pub place_type: DType,
}

pub(crate) fn max_grad(ty: DType, of: &Geometry) -> MaxGrad {
    let (form, (x, y)) = (Form::new(ty, of), sizes(of));
    let (area, across) = (of.window_area(), of.width.kernel);
    // An area stands for no place.
    let place_type = if area <= usize::from(u8::MAX) { DType::U8 } else { DType::I32 };
    let place = format!("(float)(krow * {across}u + kcol)");
    let first = format!("if (result[k] == {area}.0f && is_most(value[k], most[k])) result[k] = {place};\n");
    let text = "const auto is_most = [](float a, float most) { return a == most || (a != a && most != most); };\n"
        .to_owned()
        + &form.load("most", "maxima", &format!("v * {}u", form.lanes))
        + &form.filled("result", &format!("{area}.0f"))
        + &form.over_elements(&form.each(&first));
    let inputs = vec![form.input("x", x), form.input("maxima", y)];
    let places = form.over_y("max_pool_places", inputs, place_type, &text);
    MaxGrad { places, gather: form.gather_places(place_type), place_type }
}

/// Elements of the window `(row, col)` that lie in the input, or all of it, as a number called `count`.
fn count(of: &Geometry, include_pad: bool) -> String {
    if include_pad {
        return format!("const float count = {}.0f;\n", of.window_area());
    }
    let along = |at: &str, window: &Window| {
        let Window { input, kernel, stride, low, .. } = window;
        format!(
            "const int begin_{at} = (int)({at} * {stride}u) - {low}, end_{at} = begin_{at} + {kernel};\n\
             const int count_{at} = (end_{at} < {input} ? end_{at} : {input}) - (begin_{at} < 0 ? 0 : begin_{at});\n"
        )
    };
    along("row", &of.height) + &along("col", &of.width) + "const float count = (float)(count_row * count_col);\n"
}

/// From `x` to `y`: means of windows, the padding included or not.
pub(crate) fn average(ty: DType, of: &Geometry, include_pad: bool) -> Kernel {
    let (form, (x, _)) = (Form::new(ty, of), sizes(of));
    let text = form.filled("result", "0.0f")
        + &form.over_elements(&form.each("result[k] += value[k];\n"))
        + &format!("const u32 row = c1, col = c2;\n{}", count(of, include_pad))
        + &form.each("result[k] /= count;\n");
    form.over_y("avg_pool", vec![form.input("x", x)], ty, &text)
}

/// From `dy` to that of `x`: each element gets its share of the gradients of its windows.
pub(crate) fn average_grad(ty: DType, of: &Geometry, include_pad: bool) -> Kernel {
    let (form, (_, y)) = (Form::new(ty, of), sizes(of));
    let window = form.load("given", "dy", &form.at_y("row", "col"))
        + &count(of, include_pad)
        + &form.each("result[k] += given[k] / count;\n");
    let text = form.filled("result", "0.0f") + &form.over_windows(&window);
    form.over_x("avg_pool_grad", vec![form.input("dy", y)], &text)
}
