//! Random numbers outside of fusions.

use super::for_each;
use crate::kgen::{Kernel, Parameter};
use bessemer_ir::DType;

/// From the step counter to normal numbers (Box-Muller), in double precision as everywhere.
pub(crate) fn normal(elements: usize, seed: u64, stream: u32) -> Kernel {
    let parameters = vec![
        Parameter::input("step", DType::I32, 1),
        Parameter::output("y", DType::F32, elements),
        Parameter::Number { name: "stream".into(), value: stream },
    ];
    let text = format!(
        "u32 words[4];\n\
         random_words({seed}ull, (u32)step[0], stream, i / 4, words);\n\
         const bool is_late = i % 4 >= 2;\n\
         const double radius = sqrt(-2.0 * log(1.0 - (double)unit(is_late ? words[2] : words[0])));\n\
         const double angle = {tau:?} * (double)unit(is_late ? words[3] : words[1]);\n\
         y[i] = (float)(radius * (i % 2 == 0 ? cos(angle) : sin(angle)));\n",
        tau = std::f64::consts::TAU
    );
    for_each("normal", parameters, elements, &text)
}
