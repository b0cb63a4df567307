//! The word by which steps that are queued behind one that failed leave all state as it is.

use super::for_each;
use super::index::REPORT_WORDS;
use crate::kgen::{Kernel, Parameter};
use bessemer_ir::DType;

/// `i32` words of a halt, of which two are used: the number, from 1, of the step that failed, or 0; and how many steps ended.
pub(crate) const HALT_WORDS: usize = 4;

fn halt() -> Parameter {
    Parameter::output("halt", DType::I32, HALT_WORDS)
}

/// Halts if one of the reports says something; `reports` is their number, at least 1.
pub(crate) fn look(reports: usize) -> Kernel {
    let parameters = vec![Parameter::input("reports", DType::I32, reports * REPORT_WORDS), halt()];
    let text = format!(
        "bool is_bad = false;\n\
         for (u32 k = 0; k < {}u; ++k) is_bad |= ((const u64*)reports)[k] != ~0ull;\n\
         if (is_bad && halt[0] == 0) halt[0] = halt[1] + 1;\n",
        reports * REPORT_WORDS / 2
    );
    for_each("look", parameters, 1, &text)
}

/// Halts if the first `i32` of `lost`, memory of the host, is not 0: a sum over ranks that was waited for is none.
pub(crate) fn look_at_ranks() -> Kernel {
    let parameters = vec![Parameter::input("lost", DType::I32, 1), halt()];
    let text = "if (*(const volatile int*)lost != 0 && halt[0] == 0) halt[0] = halt[1] + 1;\n";
    for_each("look_at_ranks", parameters, 1, text)
}

/// Counts a step, which halts if the number that it is given, `f32`, is not 0.
pub(crate) fn end(is_given: bool) -> Kernel {
    let value = is_given.then(|| Parameter::input("value", DType::F32, 1));
    let halts = if is_given { "if (value[0] != 0.0f && halt[0] == 0) halt[0] = halt[1] + 1;\n" } else { "" };
    for_each("end", value.into_iter().chain([halt()]).collect(), 1, &format!("{halts}halt[1] += 1;\n"))
}
