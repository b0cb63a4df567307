//! Pooling of images `[N, H, W, C]`. Gradients are gathered: each element of the input looks for the windows that it lies in.

use super::{converted, coordinates, for_each};
use crate::kgen::{Kernel, Parameter};
use bessemer_ir::DType;
use bessemer_ir::ops::conv::Window;
use bessemer_ir::ops::pool::Geometry;

/// `body` for each element of the window at `at`, whose position along the axis is called `name`.
fn for_window(name: &str, at: &str, window: &Window, body: &str) -> String {
    let Window { input, kernel, stride, low, .. } = window;
    format!(
        "for (u32 k{name} = 0; k{name} < {kernel}u; ++k{name}) {{\n    \
         const u32 {name} = {at} * {stride}u + k{name} - {low}u;\n    \
         if ({name} >= {input}u) continue;\n{body}}}\n"
    )
}

/// `body` for each window, in ascending order, in which the element at `at` lies; the window is called `name`, the place of the
/// element in it `k{name}`.
fn for_windows(name: &str, at: &str, window: &Window, body: &str) -> String {
    let Window { output, kernel, stride, low, .. } = window;
    format!(
        "for (int k{name} = {last}; k{name} >= 0; --k{name}) {{\n    \
         const int from{name} = (int){at} + {low} - k{name};\n    \
         if (from{name} < 0 || from{name} % {stride} != 0 || from{name} / {stride} >= {output}) continue;\n    \
         const u32 {name} = (u32)from{name} / {stride}u;\n{body}}}\n",
        last = kernel - 1
    )
}

/// `body` for each element `at_x` of the input under the window `(c1, c2)` of the output.
fn over_elements(of: &Geometry, body: &str) -> String {
    let at = format!(
        "const u32 at_x = ((c0 * {}u + row) * {}u + col) * {}u + c3;\n",
        of.height.input, of.width.input, of.channels
    );
    for_window("row", "c1", &of.height, &for_window("col", "c2", &of.width, &(at + body)))
}

/// `body` for each window `at_y` of the output in which the element `(c1, c2)` of the input lies.
fn over_windows(of: &Geometry, body: &str) -> String {
    let at = format!(
        "const u32 at_y = ((c0 * {}u + row) * {}u + col) * {}u + c3;\n",
        of.height.output, of.width.output, of.channels
    );
    for_windows("row", "c1", &of.height, &for_windows("col", "c2", &of.width, &(at + body)))
}

fn sizes(of: &Geometry) -> (usize, usize) {
    (of.x_shape().elements(), of.y_shape().elements())
}

/// From `x` to `y`.
pub(crate) fn max(ty: DType, of: &Geometry) -> Kernel {
    let (x, y) = sizes(of);
    let larger = "const float value = to_f32(x[at_x]);\nif (value > most || value != value) most = value;\n";
    let text = coordinates("i", &of.y_shape())
        + "float most = max_of::identity();\n"
        + &over_elements(of, larger)
        + &format!("y[i] = {};\n", converted("most", DType::F32, ty));
    for_each("max_pool", vec![Parameter::input("x", ty, x), Parameter::output("y", ty, y)], y, &text)
}

/// From `x`, `y` and `dy` to `dx`: the first largest element of each window takes the window's gradient.
pub(crate) fn max_grad(ty: DType, of: &Geometry) -> Kernel {
    let (x, y) = sizes(of);
    let parameters = vec![
        Parameter::input("x", ty, x),
        Parameter::input("y", ty, y),
        Parameter::input("dy", ty, y),
        Parameter::output("dx", ty, x),
    ];
    // Elements of the window before this one.
    let before = for_window(
        "row2",
        "row",
        &of.height,
        &for_window(
            "col2",
            "col",
            &of.width,
            &format!(
                "if (krow2 > (u32)krow || (krow2 == (u32)krow && kcol2 >= (u32)kcol)) break;\n\
                 is_first &= !is_most(to_f32(x[((c0 * {}u + row2) * {}u + col2) * {}u + c3]), most);\n",
                of.height.input, of.width.input, of.channels
            ),
        ),
    );
    let window = format!(
        "const float most = to_f32(y[at_y]);\n\
         bool is_first = is_most(value, most);\n\
         if (!is_first) continue;\n\
         {before}\
         if (is_first) total += to_f32(dy[at_y]);\n"
    );
    let text = "const auto is_most = [](float a, float most) { return a == most || (a != a && most != most); };\n"
        .to_owned()
        + &coordinates("i", &of.x_shape())
        + "const float value = to_f32(x[i]);\nfloat total = 0.0f;\n"
        + &over_windows(of, &window)
        + &format!("dx[i] = {};\n", converted("total", DType::F32, ty));
    for_each("max_pool_grad", parameters, x, &text)
}

/// Elements of the window `(row, col)` that lie in the input, or all of it, as a number called `count`.
fn count(of: &Geometry, include_pad: bool) -> String {
    if include_pad {
        return format!("const float count = {}.0f;\n", of.window_area());
    }
    let along = |at: &str, window: &Window| {
        let Window { input, kernel, stride, low, .. } = window;
        format!(
            "const int first_{at} = (int)({at} * {stride}u) - {low}, last_{at} = first_{at} + {kernel};\n\
             const int count_{at} = (last_{at} < {input} ? last_{at} : {input}) - (first_{at} < 0 ? 0 : first_{at});\n"
        )
    };
    along("row", &of.height) + &along("col", &of.width) + "const float count = (float)(count_row * count_col);\n"
}

/// From `x` to `y`: means of windows, the padding included or not.
pub(crate) fn average(ty: DType, of: &Geometry, include_pad: bool) -> Kernel {
    let (x, y) = sizes(of);
    let divide = format!("const u32 row = c1, col = c2;\n{}", count(of, include_pad));
    let text = coordinates("i", &of.y_shape())
        + "float total = 0.0f;\n"
        + &over_elements(of, "total += to_f32(x[at_x]);\n")
        + &divide
        + &format!("y[i] = {};\n", converted("(total / count)", DType::F32, ty));
    for_each("avg_pool", vec![Parameter::input("x", ty, x), Parameter::output("y", ty, y)], y, &text)
}

/// From `dy` to `dx`: each element gets its share of the gradients of its windows.
pub(crate) fn average_grad(ty: DType, of: &Geometry, include_pad: bool) -> Kernel {
    let (x, y) = sizes(of);
    let text = coordinates("i", &of.x_shape())
        + "float total = 0.0f;\n"
        + &over_windows(of, &(count(of, include_pad) + "total += to_f32(dy[at_y]) / count;\n"))
        + &format!("dx[i] = {};\n", converted("total", DType::F32, ty));
    for_each("avg_pool_grad", vec![Parameter::input("dy", ty, y), Parameter::output("dx", ty, x)], x, &text)
}
