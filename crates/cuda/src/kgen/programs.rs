//! One thread that computes fusions of one element, one after the other.

use super::fusions::{elements, operands};
use super::lanes::{Lanes, Width};
use super::{Kernel, KernelError, Operand, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::Fusion;

/// A fusion of one element, and the types of its inputs.
pub(crate) struct Scalar<'a> {
    pub fusion: &'a Fusion,
    pub inputs: Vec<DType>,
}

/// The kernel that computes fusions in their order. It takes the inputs, then the outputs of each fusion. What a fusion has written is in
/// memory before the next one reads, so that each computes what it would if it were launched alone.
///
/// # Errors
/// As [`fusion`](super::fusion).
pub(crate) fn program(scalars: &[Scalar<'_>]) -> Result<Kernel, KernelError> {
    let mut parameters = Vec::new();
    let mut body = "const u32 at = 0;\n".to_owned();
    for Scalar { fusion, inputs } in scalars {
        let lanes = Lanes::new(fusion, inputs)?;
        let mut own = String::new();
        debug_assert!(
            !operands(&lanes).iter().any(|operand| matches!(operand, Operand::Scratch(_))),
            "fusions of one element have no scratch memory"
        );
        for parameter in lanes.parameters() {
            let own_name = format!("p{}", parameters.len());
            own += &format!("const auto {} = {own_name};\n", parameter.name());
            parameters.push(parameter.named(own_name));
        }
        own += &elements(&lanes, Width { lanes: 1, flat: true });
        body += &format!("{{\n{}}}\nmemory_is_written();\n", indented(&own));
    }
    Ok(Kernel::new("program", parameters, [1, 1, 1], [1, 1, 1], &indented(&body)).named_by_content())
}
