//! Steps that leave all state as it is: those behind a step that failed, until that one was collected.

use crate::kernels::copies::{Arrangement, copy};
use crate::kernels::halt::{HALT_WORDS, end, look};
use crate::kgen::Kernel;
use crate::lower::replaces_state;
use bessemer_ir::DType;
use bessemer_ir::plan::{KernelCall, Location, Plan};
use bessemer_ir::run::{HALT, Phase};

/// Bytes of the words of a halt.
pub(super) const HALT_BYTES: usize = 4 * HALT_WORDS;

/// Kernels that a plan needs beside its own so that its steps can halt.
pub(super) struct Halting {
    /// Takes the reports and the halt; none where no kernel reports.
    pub(super) look: Option<Kernel>,
    /// Takes the output [`HALT`], if the plan has it, and the halt.
    pub(super) end: Kernel,
    /// Whether there is the output.
    pub(super) has_output: bool,
    /// For each copy of the plan into state a kernel that copies, and takes the halt last.
    pub(super) copies: Vec<Option<Kernel>>,
}

impl Halting {
    /// `None` for a plan that replaces no state, or whose steps do not fail.
    pub(super) fn new(plan: &Plan, reports: usize, ranks: usize) -> Option<Halting> {
        let has_output = plan.graph.find_output(HALT).is_some();
        if plan.graph.updates().is_empty() || reports == 0 && !has_output && ranks == 1 {
            return None;
        }
        let into_state = |to: Location| matches!(to, Location::State(_));
        let copies = plan.copies.iter().map(|copy| into_state(copy.to).then(|| copy_of(copy.bytes).unless_halted()));
        let look = (reports > 0).then(|| look(reports));
        Some(Halting { look, end: end(has_output), has_output, copies: copies.collect() })
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = (&str, &Kernel)> {
        let kernels = self.look.iter().chain([&self.end]).chain(self.copies.iter().flatten());
        kernels.map(|kernel| (kernel.name.as_str(), kernel))
    }
}

fn copy_of(bytes: usize) -> Kernel {
    let ty = if bytes.is_multiple_of(4) { DType::I32 } else { DType::U8 };
    let dense = Arrangement::dense(ty, &[bytes / ty.size()].into());
    copy(&[bytes / ty.size()], &dense, &dense)
}

/// Which of a plan's calls are to look at the reports before they replace state: in any part of a step some may have reported
/// since the last look. Each call comes with whether it reports; of several that are launched as one there is the first.
pub(super) fn calls_that_look(plan: &Plan, calls: &[(&KernelCall, bool)]) -> Vec<bool> {
    let mut looks = vec![false; calls.len()];
    for phase in [Phase::Accumulate, Phase::Update] {
        let mut is_open = true;
        for (number, (call, reports)) in calls.iter().enumerate() {
            if !call.per_micro_batch && phase == Phase::Accumulate {
                continue;
            }
            if is_open && replaces_state(plan, call) {
                looks[number] = true;
                is_open = false;
            }
            is_open |= reports;
        }
    }
    looks
}
