//! The first half of making a plan ready: what it launches, with engines chosen and kernels compiled, before there is memory for it.

use super::algorithms::Multiplication;
use super::bound::Report;
use super::groups::Placed;
use super::halt::{Halting, calls_that_look};
use super::planned::{Planned, convolutions_of, lowered_of};
use super::{Gpu, failed};
use crate::kgen::Kernel;
use crate::lower::{Together, Unit, replaces_state, units, units_alone};
use bessemer_ir::plan::{KernelCall, OnceCall, Plan};
use bessemer_ir::run::RunError;
use std::iter;

/// The launches of a plan.
pub(super) struct Prepared<'a> {
    /// Those of invariant values.
    pub once_calls: Vec<Planned<'a>>,
    pub calls: Vec<Planned<'a>>,
    /// What kernels may report of their data.
    pub reports: Vec<Report>,
    /// Where a rank that meets bad data keeps steps from replacing state.
    pub halting: Option<Halting>,
    /// Bytes of the tables of grouped launches.
    pub table_bytes: usize,
}

impl<'a> Prepared<'a> {
    /// # Errors
    /// A convolution that cuDNN has no engine for, a kernel that does not compile.
    pub(super) fn new(gpu: &Gpu, plan: &'a Plan) -> Result<Prepared<'a>, RunError> {
        let once: Vec<&KernelCall> = plan.once_calls.iter().filter_map(run_once).collect();
        choose(gpu, plan, &once)?;
        let (mut reports, mut table_bytes) = (Vec::new(), 0);
        let mut planned = |calls, together: Option<Together>| {
            let together = together.map(|together| Placed::new(together, &mut table_bytes));
            Planned::new(gpu, plan, calls, together, &mut reports)
        };
        let once_calls = once.into_iter().map(|call| planned(std::slice::from_ref(call), None));
        let once_calls = once_calls.collect::<Result<Vec<_>, RunError>>()?;
        let units = if gpu.eager { units_alone(plan) } else { units(plan) };
        let calls = units.into_iter().map(|Unit { calls, together }| planned(&plan.calls[calls], together));
        let mut calls = calls.collect::<Result<Vec<_>, RunError>>()?;
        let halting = Halting::new(plan, reports.len(), gpu.ranks());
        if halting.is_some() {
            guard(plan, &mut calls);
        }
        let kernels = once_calls.iter().chain(&calls).flat_map(Planned::kernels);
        gpu.compile(&kernels.chain(halting.iter().flat_map(Halting::kernels)).collect()).map_err(failed)?;
        Ok(Prepared { once_calls, calls, reports, halting, table_bytes })
    }
}

fn run_once(once: &OnceCall) -> Option<&KernelCall> {
    match once {
        OnceCall::Run(call) => Some(call),
        OnceCall::Prepack(_) => None,
    }
}

/// Chooses the engine of each convolution and the algorithm of each product of a plan, by measuring those that are not known yet.
fn choose(gpu: &Gpu, plan: &Plan, once: &[&KernelCall]) -> Result<(), RunError> {
    let called = plan.calls.iter().chain(once.iter().copied());
    let called = called.map(|call| lowered_of(plan, call)).collect::<Result<Vec<_>, RunError>>()?;
    let steps = || {
        called.iter().flat_map(|lowered| {
            let fused = lowered.fused.iter().filter(|_| !gpu.no_epilogues).map(|fused| &fused.steps[..]);
            iter::once(&lowered.steps[..]).chain(fused)
        })
    };
    let _order = gpu.lock();
    let works: Vec<_> = steps().flat_map(|steps| convolutions_of(steps, plan.tf32)).collect();
    let products: Vec<_> = steps().flat_map(|steps| Multiplication::all(steps, plan.tf32)).collect();
    gpu.choose(&works, &products)
}

/// Gives calls that replace state kernels that look first whether the step has been halted.
fn guard(plan: &Plan, calls: &mut [Planned<'_>]) {
    let reporting: Vec<_> = calls.iter().map(|call| (call.call, call.report.is_some())).collect();
    let looks = calls_that_look(plan, &reporting);
    for (call, looks) in calls.iter_mut().zip(looks).filter(|(call, _)| replaces_state(plan, call.call)) {
        // A library cannot be kept from writing.
        call.fused = call.fused.filter(|_| call.replaces_sums());
        call.guarded = Some((call.guardable_kernels().map(Kernel::unless_halted).collect(), looks));
    }
}
