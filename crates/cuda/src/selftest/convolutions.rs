//! What cuDNN computes of convolutions and of what is fused with them, and how fast.

use super::case::{Expected, decode, encode};
use super::runner::Runner;
use super::{Failure, Figure};
use crate::cudnn::support::{detection, fusions, resnet50};
use crate::cudnn::{BatchNorm, Convolution, Cudnn, Fusion, Graph, Heuristics, Plan, Planner, Role, TensorId};
use crate::driver::{Arena, Block};
use crate::error::GpuError;
use crate::exec::measure::fill;
use bessemer_ir::reference::Tensor;
use bessemer_ir::shape::TensorType;
use bessemer_ir::{DType, philox};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Plans of a graph whose numbers are compared, of those whose engines compile, and how long that may take for all graphs.
const COMPARED: usize = 4;
const COMPARED_COMPILED: usize = 1;
const LONGEST: Duration = Duration::from_secs(60);
/// Failures of graphs that the message of the step lists.
const TOLD: usize = 8;
/// Plans of a graph that are timed, and of those whose engines compile, which takes a second each.
const TIMED: usize = 5;
const TIMED_COMPILED: usize = 2;
/// Images of a batch that is timed.
const BATCH: usize = 256;
const DETECTION_BATCH: usize = 32;

/// A kernel of 3 x 3 that moves by one and by two, one of 1 x 1, and a depthwise one: channels as tensor cores take them.
fn small() -> [Convolution; 4] {
    [
        Convolution::same([2, 9, 8, 16], 32, 3, 1),
        Convolution::same([2, 8, 8, 16], 32, 3, 2),
        Convolution::same([3, 5, 7, 32], 16, 1, 1),
        Convolution::depthwise([2, 8, 8, 16], 3, 1),
    ]
}

/// Largest error allowed: inputs are exact, results and what stands between fused operations are rounded to the type.
fn tolerance(ty: DType) -> f64 {
    match ty {
        DType::Bf16 => 3e-2,
        _ => 4e-3,
    }
}

/// The tensors of a graph in the device's memory.
struct Memory {
    blocks: Vec<(TensorId, Block)>,
    arena: Arena,
    /// Where the workspace begins.
    end: usize,
}

impl Memory {
    fn new(runner: &Runner, graph: &Graph, workspace: usize) -> Result<Memory, GpuError> {
        let sizes = || graph.in_memory().map(|id| graph.get(id).bytes().next_multiple_of(Arena::ALIGNMENT));
        let end: usize = sizes().sum();
        let arena = runner.context.arena(end + workspace.max(1))?;
        let mut offset = 0;
        let mut blocks = Vec::new();
        for (id, size) in graph.in_memory().zip(sizes()) {
            blocks.push((id, arena.block(offset, graph.get(id).bytes())?));
            offset += size;
        }
        Ok(Memory { blocks, arena, end })
    }

    fn borrowed(&self) -> Vec<(TensorId, &Block)> {
        self.blocks.iter().map(|(id, block)| (*id, block)).collect()
    }

    fn workspace(&self) -> Result<Block, GpuError> {
        self.arena.block(self.end, self.arena.bytes() - self.end)
    }

    fn of(&self, id: TensorId) -> &Block {
        &self.blocks.iter().find(|(own, _)| *own == id).expect("a tensor in memory").1
    }
}

/// Numbers of an input: factors of channels lie near 1, so that nothing is cut off.
fn numbers(name: &str, stream: u32, elements: usize) -> Vec<f64> {
    let spread = if matches!(name, "scale" | "deviation") { (0.25, 1.0) } else { (1.0, 0.0) };
    (0..elements).map(|i| spread.1 + spread.0 * f64::from(philox::normal(5, 0, stream, i as u64))).collect()
}

/// Graphs of one kind whose numbers are compared.
struct Compared {
    name: String,
    /// What each is called, and whether there must be a plan.
    graphs: Vec<(String, Graph)>,
    is_needed: bool,
    ty: DType,
}

/// All of them; what steps are made of comes first.
fn compared() -> Vec<Compared> {
    let mut all = Vec::new();
    for ty in [DType::F16, DType::Bf16, DType::F32] {
        all.extend(Fusion::ALL.map(|fusion| {
            let name = format!("{}, {ty}", fusion.name());
            let graphs = small().map(|of| (format!("{} of {of} in {ty}", fusion.name()), of.graph(fusion, ty)));
            Compared { name, graphs: graphs.to_vec(), is_needed: matches!(fusion, Fusion::Plain(_)), ty }
        }));
        all.extend(BatchNorm::ALL.map(|norm| {
            let name = format!("{}, {ty}", norm.name());
            Compared { graphs: vec![(name.clone(), norm.graph([4, 6, 7, 32], ty))], name, is_needed: false, ty }
        }));
    }
    all.sort_by_key(|compared| !compared.is_needed);
    all
}

/// Compares every fusion with its reference in `f64`; those that end with ReLU must keep NaN. Fusions that cuDNN does not offer are counted;
/// plain convolutions must be there. A failure does not stop the others; a figure counts the kinds for which there was no time.
pub(super) fn compare(runner: &Runner, library: &Arc<Cudnn>, figures: &mut Vec<Figure>) -> Result<(), Failure> {
    let begun = Instant::now();
    let (mut failed, mut left) = (Vec::new(), 0);
    for Compared { name, graphs, is_needed, ty } in compared() {
        if begun.elapsed() > LONGEST {
            left += 1;
            continue;
        }
        let (mut worst, mut plans) = (0.0f64, 0);
        for (place, graph) in graphs {
            match compare_one(runner, library, &graph, &place, ty) {
                Ok((_, 0)) if is_needed => failed.push(format!("there is no plan for {place}")),
                Ok((error, count)) => (worst, plans) = (worst.max(error), plans + count),
                Err(Failure(problem)) => failed.push(problem),
            }
            runner.context.is_alive()?;
        }
        figures.push(Figure::new(format!("plans: {name}"), f64::from(plans), ""));
        if plans > 0 {
            figures.push(Figure::new(format!("error: {name}"), worst, "of what is allowed"));
        }
    }
    if left > 0 {
        figures.push(Figure::new("kinds of graphs that were left for want of time", f64::from(left), ""));
    }
    let more = failed.len().saturating_sub(TOLD);
    failed.truncate(TOLD);
    match failed[..] {
        [] => Ok(()),
        _ if more > 0 => Err(Failure(format!("{}; and {more} more", failed.join("; ")))),
        _ => Err(Failure(failed.join("; "))),
    }
}

/// The first plans whose engines the executor would take, `compiled` of them at most by engines that compile.
fn first_plans(planner: &Planner, (ty, most, mut compiled): (DType, usize, usize)) -> Vec<Plan> {
    let mut plans = Vec::new();
    for number in 0..planner.len() {
        let engine = planner.engine(number).ok().filter(|engine| engine.suits(ty, false));
        let Some(engine) = engine.filter(|engine| !engine.compiles || compiled > 0) else { continue };
        compiled -= usize::from(engine.compiles);
        plans.extend(planner.plan(number).ok());
        if plans.len() == most {
            break;
        }
    }
    plans
}

/// Largest error of the plans of one graph, in units of what is allowed, and how many there are.
fn compare_one(
    runner: &Runner,
    library: &Arc<Cudnn>,
    graph: &Graph,
    place: &str,
    ty: DType,
) -> Result<(f64, u32), Failure> {
    let Ok(planner) = library.planner(graph, Heuristics::Best) else { return Ok((0.0, 0)) };
    let plans = first_plans(&planner, (ty, COMPARED, COMPARED_COMPILED));
    let workspace = plans.iter().map(|plan| plan.workspace).max().unwrap_or(0);
    let memory = Memory::new(runner, graph, workspace)?;
    let mut worst = 0.0f64;
    let holes = if graph.ends_with_relu() { &[false, true][..] } else { &[false] };
    for &has_hole in holes {
        worst = worst.max(compare_plans(runner, graph, &memory, &plans, has_hole, (place, ty))?);
    }
    Ok((worst, plans.len() as u32))
}

/// Largest error of these plans, in units of what is allowed. With a hole, which is a NaN in the first input, only what must be NaN is
/// compared: algorithms may spread one to neighbours.
fn compare_plans(
    runner: &Runner,
    graph: &Graph,
    memory: &Memory,
    plans: &[Plan],
    has_hole: bool,
    (place, ty): (&str, DType),
) -> Result<f64, Failure> {
    let mut inputs = Vec::new();
    for (stream, id) in graph.of_role(Role::Input).enumerate() {
        let tensor = graph.get(id);
        let mut all = numbers(tensor.name, stream as u32, tensor.elements());
        if has_hole && stream == 0 {
            all[0] = f64::NAN;
        }
        let bytes = encode(tensor.ty, &all);
        runner.stream.upload(&bytes, memory.of(id))?;
        inputs.push(decode(tensor.ty, &bytes));
    }
    let wanted = graph.evaluate(&inputs);
    let mut worst = 0.0f64;
    for plan in plans {
        let engine = plan.engine.number;
        for id in graph.of_role(Role::Output) {
            runner.stream.fill(memory.of(id), 0xff)?;
        }
        plan.bind(&memory.borrowed(), &memory.workspace()?)?.launch(&runner.stream)?;
        for (id, wanted) in graph.of_role(Role::Output).zip(&wanted) {
            let tensor = graph.get(id);
            let mut bytes = vec![0; tensor.bytes()];
            runner.stream.download(memory.of(id), &mut bytes)?;
            let mut got = decode(tensor.ty, &bytes);
            if has_hole {
                got.iter_mut()
                    .zip(wanted)
                    .filter(|(_, wanted)| !wanted.is_nan())
                    .for_each(|(got, wanted)| *got = *wanted);
            }
            let after = Tensor::new(TensorType::new(tensor.ty, [tensor.elements()]), wanted.clone());
            let (error, at) = Expected { before: None, after, tolerance: tolerance(ty) }.error(&got);
            if error > 1.0 {
                let name = tensor.name;
                return Err(Failure(format!(
                    "{place}, engine {engine}: {name} at {at} is wrong by {error:.1} times what is allowed"
                )));
            }
            worst = worst.max(error);
        }
    }
    Ok(worst)
}

/// Convolutions that are timed: those of ResNet-50 and of detectors, or small ones, which try out the timing.
pub(super) fn timed(large: bool) -> Vec<Convolution> {
    if large { [resnet50(BATCH), detection(DETECTION_BATCH)].concat() } else { small()[..1].to_vec() }
}

/// Times every convolution, fused and not, in fp16.
pub(super) fn speed(
    runner: &Runner,
    library: &Arc<Cudnn>,
    timed: &[Convolution],
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    for of in timed {
        for fusion in fusions(of) {
            time_one(runner, library, of, fusion, DType::F16, figures)?;
        }
    }
    Ok(())
}

/// The fastest of the first plans. A graph without plans has no figure.
fn time_one(
    runner: &Runner,
    library: &Arc<Cudnn>,
    of: &Convolution,
    fusion: Fusion,
    ty: DType,
    figures: &mut Vec<Figure>,
) -> Result<(), GpuError> {
    const TIMES: usize = 5;
    let graph = of.graph(fusion, ty);
    let Ok(planner) = library.planner(&graph, Heuristics::Best) else { return Ok(()) };
    let plans = first_plans(&planner, (ty, TIMED, TIMED_COMPILED));
    let Some(workspace) = plans.iter().map(|plan| plan.workspace).max() else { return Ok(()) };
    let memory = Memory::new(runner, &graph, workspace)?;
    for id in graph.of_role(Role::Input) {
        fill(&runner.stream, graph.get(id).ty, memory.of(id))?;
    }
    let timer = runner.context.timer()?;
    let (mut best, mut engine) = (Duration::MAX, -1);
    for plan in plans {
        let number = plan.engine.number;
        let bound = plan.bind(&memory.borrowed(), &memory.workspace()?)?;
        bound.launch(&runner.stream)?;
        for _ in 0..TIMES {
            let time = timer.time(&runner.stream, || bound.launch(&runner.stream))?;
            if time < best {
                (best, engine) = (time, number);
            }
        }
    }
    let name = format!("{}, {of}, {ty}", fusion.name());
    let seconds = best.as_secs_f64();
    let bytes: usize = graph.in_memory().map(|id| graph.get(id).bytes()).sum();
    figures.push(Figure::new(format!("time: {name}"), seconds * 1e6, "us"));
    figures.push(Figure::new(format!("engine: {name}"), engine as f64, ""));
    figures.push(Figure::new(format!("bytes: {name}"), bytes as f64 / seconds / 1e9, "GB/s"));
    figures.push(Figure::new(format!("arithmetic: {name}"), of.operations() / seconds / 1e12, "TFLOP/s"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_lie_where_nothing_is_cut_off() {
        let near = |name: &str| numbers(name, 0, 1000).iter().sum::<f64>() / 1000.0;
        assert!((near("scale") - 1.0).abs() < 0.05 && near("x").abs() < 0.1);
    }
}
