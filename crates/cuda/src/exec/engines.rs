//! The engines of cuDNN that run convolutions, alone and with what is fused with them: one for each distinct graph, the heuristics'
//! first one or the fastest one that was measured.

use super::choices::{AllTaken, Taken, take};
use super::measure::{Operand, faster};
use super::tuning::{Choice, Way};
use super::{Gpu, locked, missing};
use crate::cudnn::{
    Convolution, Cudnn, Engine, Fusion, Heuristics, MOST_WORKSPACE, Plan, Planner, Role, is_unsupported,
};
use crate::error::GpuError;
use bessemer_ir::DType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for the measurements of a plan, of which the last one may take longer.
const BUDGET: Duration = Duration::from_secs(20);
/// Configurations of suitable engines that are measured for a convolution, and of those whose engines compile.
const MEASURED: usize = 8;
const COMPILED: usize = 2;

/// One pass of a convolution of operands of one type, with what is fused with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Work {
    pub convolution: Convolution,
    pub fusion: Fusion,
    pub ty: DType,
    /// Whether operands of `f32` may be rounded to TF32.
    pub tf32: bool,
}

/// The plan that was chosen, and the microseconds of a launch of it, where it was measured.
struct Chosen {
    plan: Arc<Plan>,
    microseconds: Option<f64>,
}

/// The plans that were made.
#[derive(Default)]
pub(super) struct Engines {
    /// `None` for a fusion that there is no engine for.
    plans: Mutex<HashMap<Work, Option<Chosen>>>,
    /// Why there is no plan, or no measurement.
    reasons: Mutex<HashMap<Work, String>>,
}

impl Engines {
    /// The engines that were chosen for these, by name.
    pub(super) fn of(&self, works: impl IntoIterator<Item = Work>) -> BTreeMap<String, String> {
        let plans = locked(&self.plans);
        let named = |work: Work| {
            let plan = &plans.get(&work)?.as_ref()?.plan;
            let (heuristics, configuration) = plan.proposal;
            let of = if heuristics == Heuristics::Fallback { "the fallbacks of " } else { "" };
            Some((work.name(), format!("engine {} in configuration {configuration} of {of}cuDNN", plan.engine.number)))
        };
        works.into_iter().filter_map(named).collect()
    }

    /// What was chosen for these, for other ranks.
    pub(super) fn taken(&self, works: &[Work]) -> AllTaken {
        let plans = locked(&self.plans);
        let taken = |chosen: &Chosen| {
            let (heuristics, configuration) = chosen.plan.proposal;
            let (engine, fallback) = (chosen.plan.engine.number, heuristics == Heuristics::Fallback);
            let way = Way::Engine { configuration, engine, fallback };
            Taken::new(way, chosen.microseconds)
        };
        works.iter().filter_map(|work| Some((work.name(), plans.get(work)?.as_ref().map(taken)))).collect()
    }

    /// Why there is no plan or no measurement of these, where there is none, by name.
    pub(super) fn reasons(&self, works: impl IntoIterator<Item = Work>) -> BTreeMap<String, String> {
        let reasons = locked(&self.reasons);
        works.into_iter().filter_map(|work| Some((work.name(), reasons.get(&work)?.clone()))).collect()
    }

    /// The plan for a convolution that was [chosen](Gpu::choose_engines) for, alone or with a fusion that is
    /// [preferred](Engines::prefers).
    pub(super) fn plan(&self, work: &Work) -> Arc<Plan> {
        let plans = locked(&self.plans);
        Arc::clone(&plans[work].as_ref().expect("only fusions lack an engine, and then are not preferred").plan)
    }

    /// Whether a convolution with what is fused with it is preferred to the plain one, whose kernels behind it take at least
    /// `saved` longer: if it was measured to be as fast; where one of them was not measured, if its engine needs no compiler at run
    /// time. Those are made for the very graph; what is compiled may be slower than the plain engine by any factor.
    pub(super) fn prefers(&self, fused: &Work, plain: &Work, saved: Duration) -> bool {
        let plans = locked(&self.plans);
        let chosen = |work: &Work| plans.get(work).and_then(Option::as_ref);
        let (Some(fused), Some(plain)) = (chosen(fused), chosen(plain)) else { return false };
        match (fused.microseconds, plain.microseconds) {
            (Some(fused), Some(plain)) => fused <= plain + saved.as_secs_f64() * 1e6,
            _ => !fused.plan.engine.compiles,
        }
    }
}

impl Work {
    /// With TF32 allowed or not in the plan, which concerns `f32` alone.
    pub(super) fn new(convolution: Convolution, fusion: Fusion, ty: DType, tf32: bool) -> Work {
        Work { convolution, fusion, ty, tf32: tf32 && ty == DType::F32 }
    }

    /// All that it depends on, as a key of files.
    fn name(&self) -> String {
        let Work { convolution, fusion, ty, tf32 } = self;
        let Convolution { input, filters, kernel, geometry, groups } = convolution;
        format!(
            "{}, {}, {input:?}, kernel {kernel:?}, filters {filters}, stride {:?}, padding {:?}, dilation {:?}, groups {groups}",
            fusion.name(),
            if *tf32 { "tf32" } else { ty.name() },
            geometry.stride,
            geometry.padding,
            geometry.dilation
        )
    }

    fn planner(&self, library: &Arc<Cudnn>, heuristics: Heuristics) -> Result<Planner, GpuError> {
        library.planner(&self.convolution.graph(self.fusion, self.ty), heuristics)
    }

    /// Configurations of suitable engines that are worth a measurement, by number.
    fn configurations(&self, planner: &Planner) -> Vec<(usize, Engine)> {
        let mut compiled = 0;
        let known = (0..planner.len()).filter_map(|number| Some((number, planner.engine(number).ok()?)));
        let suitable = known.filter(|(_, engine)| engine.suits(self.ty, self.tf32));
        let measured = suitable.filter(|(_, engine)| {
            compiled += usize::from(engine.compiles);
            !engine.compiles || compiled <= COMPILED
        });
        measured.take(MEASURED).collect()
    }

    /// The heuristics' first plan of a fusion whose engine is suitable and needs no compiler at run time.
    ///
    /// # Errors
    /// There is none because of this.
    fn precompiled(&self, library: &Arc<Cudnn>) -> Result<Option<Plan>, GpuError> {
        let planner = self.planner(library, Heuristics::Best)?;
        let mut failed = None;
        for (number, _) in self.configurations(&planner).into_iter().filter(|(_, engine)| !engine.compiles) {
            match planner.plan(number) {
                Ok(plan) if plan.workspace <= MOST_WORKSPACE => return Ok(Some(plan)),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// The plan that was kept, if cuDNN still offers it.
    fn kept(&self, library: &Arc<Cudnn>, way: &Way) -> Option<Plan> {
        let &Way::Engine { configuration, engine: number, fallback } = way else { return None };
        let heuristics = if fallback { Heuristics::Fallback } else { Heuristics::Best };
        let planner = self.planner(library, heuristics).ok()?;
        let engine = (configuration < planner.len()).then(|| planner.engine(configuration).ok())??;
        let is_it = engine.number == number && engine.suits(self.ty, self.tf32);
        let plan = is_it.then(|| planner.plan(configuration).ok())??;
        (plan.workspace <= MOST_WORKSPACE).then_some(plan)
    }
}

/// The fastest engine so far for a convolution.
struct Best {
    work: Work,
    fastest: Option<(Choice, Plan, Duration)>,
    /// What failed first.
    failed: Option<GpuError>,
    /// Passes over engines that worked, of those that are there and of those that compile.
    passes: usize,
}

impl Best {
    /// Whether all engines were measured.
    fn is_final(&self) -> bool {
        self.passes == 2
    }

    fn note(&mut self, error: GpuError) {
        self.failed.get_or_insert(error);
    }
}

impl Gpu {
    /// Makes the plans that rank 0 took, for those convolutions that have none yet. The names of those that cuDNN does not offer here.
    ///
    /// # Errors
    /// cuDNN cannot be opened.
    pub(super) fn take_engines(&self, works: &[Work], taken: &AllTaken) -> Result<Vec<String>, GpuError> {
        let library = self.convolutions()?;
        take(&self.engines.plans, works, taken, Work::name, |work, taken| {
            let plan = work.kept(library, &taken.way);
            Ok(plan.map(|plan| Chosen { plan: Arc::new(plan), microseconds: taken.microseconds() }))
        })
    }

    /// Makes plans for those convolutions that have none yet, and for fusions where there is an engine. Nobody else may give work to
    /// the stream.
    ///
    /// # Errors
    /// There is no engine for a plain convolution, or the file of measurements cannot be read.
    pub(super) fn choose_engines(&self, works: impl IntoIterator<Item = Work>) -> Result<(), GpuError> {
        let mut missing = missing(&self.engines.plans, works);
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_by(|a, b| b.convolution.operations().total_cmp(&a.convolution.operations()));
        let library = self.convolutions()?;
        let mut plans: HashMap<Work, (Plan, f64)> = HashMap::new();
        let mut failures: Vec<(Work, GpuError)> = Vec::new();
        if let Some(known) = self.tuning.known(&library.named())? {
            let kept = |work: &Work| {
                let choice = known.get(&work.name())?;
                Some((work.kept(library, &choice.way)?, choice.microseconds))
            };
            plans.extend(missing.iter().filter_map(|work| Some((*work, kept(work)?))));
            let unknown = missing.iter().copied().filter(|work| !plans.contains_key(work)).collect();
            let mut measured = self.measure(library, unknown);
            for Best { work, fastest, failed, .. } in &mut measured {
                if let (None, Some(error)) = (fastest, failed.take()) {
                    failures.push((*work, error));
                }
            }
            let chosen: Vec<(String, Choice)> = measured
                .iter()
                .filter(|best| best.is_final())
                .filter_map(|best| Some((best.work.name(), best.fastest.as_ref()?.0.clone())))
                .collect();
            self.keep(&known, chosen);
            let fastest = |best: Best| best.fastest.map(|(choice, plan, _)| (best.work, (plan, choice.microseconds)));
            plans.extend(measured.into_iter().filter_map(fastest));
        }
        for work in missing {
            let (plan, microseconds) = match (plans.remove(&work), work.fusion) {
                (Some((plan, microseconds)), _) => (Some(plan), Some(microseconds)),
                (None, Fusion::Plain(pass)) => {
                    (Some(library.suitable_plan(&work.convolution, pass, work.ty, work.tf32)?), None)
                }
                (None, _) => match work.precompiled(library) {
                    Ok(plan) => (plan, None),
                    Err(error) => {
                        failures.push((work, error));
                        (None, None)
                    }
                },
            };
            let chosen = plan.map(|plan| Chosen { plan: Arc::new(plan), microseconds });
            locked(&self.engines.plans).insert(work, chosen);
        }
        // That there is no engine for a fusion is nothing to warn of.
        let unexpected: Vec<_> = failures.iter().filter(|(_, error)| !is_unsupported(error)).collect();
        if let Some((work, error)) = unexpected.first() {
            let works: HashSet<&Work> = unexpected.iter().map(|(work, _)| work).collect();
            self.warnings.add(format!(
                "{} convolutions could not be planned or measured, and are done by cuDNN's first proposals or without what could be \
                 fused with them, such as {}: {error}",
                works.len(),
                work.name()
            ));
        }
        let mut reasons = locked(&self.engines.reasons);
        for (work, error) in failures {
            reasons.entry(work).or_insert_with(|| error.to_string());
        }
        Ok(())
    }

    /// Measures engines as long as there is time: of all convolutions those that are there, then those that compile.
    fn measure(&self, library: &Arc<Cudnn>, works: Vec<Work>) -> Vec<Best> {
        let start = Instant::now();
        let best = |work| Best { work, fastest: None, failed: None, passes: 0 };
        let mut all: Vec<Best> = works.into_iter().map(best).collect();
        for compiles in [false, true] {
            for best in &mut all {
                if start.elapsed() > BUDGET {
                    return all;
                }
                // What cannot be measured is left to the heuristics.
                match self.measure_some(library, best, compiles) {
                    Ok(()) => best.passes += 1,
                    Err(error) => best.note(error),
                }
            }
        }
        all
    }

    /// Measures those engines of a convolution that compile, or those that do not.
    fn measure_some(&self, library: &Arc<Cudnn>, best: &mut Best, compiles: bool) -> Result<(), GpuError> {
        let planner = best.work.planner(library, Heuristics::Best)?;
        let mut plans: Vec<(usize, Plan)> = Vec::new();
        let configurations = best.work.configurations(&planner).into_iter();
        for (number, _) in configurations.filter(|(_, engine)| engine.compiles == compiles) {
            match planner.plan(number) {
                Ok(plan) if plan.workspace <= MOST_WORKSPACE => plans.push((number, plan)),
                Ok(_) => {}
                Err(error) => best.note(error),
            }
        }
        let Some(workspace) = plans.iter().map(|(_, plan)| plan.workspace).max() else { return Ok(()) };
        let graph = best.work.convolution.graph(best.work.fusion, best.work.ty);
        let operand = |id| {
            let tensor = graph.get(id);
            Operand { bytes: tensor.bytes(), ty: tensor.ty, is_filled: tensor.role == Role::Input }
        };
        let operands: Vec<Operand> = graph.in_memory().map(operand).collect();
        let what = "operands of convolutions that are measured";
        let memory = self.memory_to_measure(what, &operands, workspace.max(1))?;
        let bound: Vec<_> = graph.in_memory().zip(&memory.operands).collect();
        let timer = self.context.timer()?;
        for (configuration, plan) in plans {
            let fastest = best.fastest.as_ref().map(|(_, _, time)| *time);
            let bound = plan.bind(&bound, &memory.scratch);
            self.context.note(format!(", when engine {} is measured for {}", plan.engine.number, best.work.name()));
            match bound.and_then(|bound| faster(&timer, &self.stream, fastest, &|| bound.launch(&self.stream))) {
                Ok(Some(time)) => {
                    let way = Way::Engine { configuration, engine: plan.engine.number, fallback: false };
                    let choice = Choice { way, microseconds: time.as_secs_f64() * 1e6 };
                    best.fastest = Some((choice, plan, time));
                }
                Ok(None) => {}
                Err(error) => best.note(error),
            }
        }
        self.stream.synchronize()?;
        self.context.note(String::new());
        Ok(())
    }
}
