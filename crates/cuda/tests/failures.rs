//! Each function of every library fails at its first, a middle and its last call, in every phase of the life of a plan. One test alone: NVRTC's mock counts for all threads.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/everything.rs"]
mod everything;

use bessemer_cuda::{Check, CudaDevice, CudaOptions, CudaTarget};
use bessemer_ir::ops::conv::Conv2d;
use bessemer_ir::ops::reduce::MeanVar;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::run::{Device, RunError, StateBinding, StateLayout};
use bessemer_ir::{DType, Graph, Op};
use common::{Knobs, mock_or_skip};
use device::options;
use everything::{everything, normal, submit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// How plans are run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    eager: bool,
    /// Whether engines are measured.
    tunes: bool,
    /// Whether each launch is waited for.
    checks: bool,
}

const PHASES: [&str; 5] = ["building", "the first step", "steady steps", "collecting", "releasing"];

/// A bit of everything, and a convolution of 16 bits with statistics in its pass.
fn graph() -> Graph {
    let mut g = everything();
    let input = |g: &Graph, name: &str| g.inputs().find(|(_, input)| input.name == name).unwrap().0;
    let [x, w] = ["x", "w"].map(|name| input(&g, name)).map(|value| g.cast(value, DType::F16).unwrap());
    let y = g.push1(Op::from(Conv2d::new([1, 1], [[1, 1], [1, 1]])), &[x, w]).unwrap();
    let y = g.cast(y, DType::F16).unwrap();
    let wide = g.cast(y, DType::F32).unwrap();
    let moments = g.push(Op::from(MeanVar { axes: vec![0, 1, 2] }), &[wide]).unwrap();
    for (name, value) in [("y", y), ("mean", moments[0]), ("variance", moments[1])] {
        g.output(name, value);
    }
    g
}

/// Loads it, runs four steps of which three are in flight together, and reads what came of them. `at` is called at the end of
/// each phase.
fn live(gpu: &CudaDevice, at: &mut dyn FnMut()) -> Result<(), RunError> {
    let plan = compile(&graph(), &CudaTarget, &CompileOptions::default()).unwrap();
    let state = gpu.new_state(StateLayout::of_plan(&plan))?;
    state.write("v", &normal(320, 0))?;
    let mut snapshot = Arc::clone(&state).snapshot(&[0])?;
    let mut executor = gpu.load(plan, &state, &StateBinding::default())?;
    at();
    let first = submit(&mut *executor)?;
    executor.collect(first)?;
    at();
    snapshot.take()?;
    let tickets = [submit(&mut *executor)?, submit(&mut *executor)?, submit(&mut *executor)?];
    at();
    tickets.iter().try_for_each(|&ticket| executor.collect(ticket).map(|_| ()))?;
    executor.output("chosen")?;
    snapshot.restore()?;
    state.read("v", &mut [0; 320 * 4])?;
    at();
    Ok(())
}

fn run(folder: &Path, cubins: &Path, way: Way, at: &mut dyn FnMut()) -> Result<(), String> {
    let Way { eager, tunes, checks } = way;
    let kept = tempfile::tempdir().unwrap();
    let tuning = tunes.then(|| kept.path().join("engines.json"));
    let check = if checks { Check::Errors } else { Check::Nothing };
    let options = CudaOptions { cubins: cubins.to_owned(), tuning, check, ..options(folder, eager) };
    let gpu = CudaDevice::open(&options).map_err(|error| error.to_string())?;
    let outcome = live(&gpu, at).map_err(|error| error.to_string());
    assert_eq!(gpu.memory(), [], "what is left behind {outcome:?}");
    outcome
}

fn is_release(call: &str) -> bool {
    ["Destroy", "Free", "Unload", "Release"].iter().any(|word| call.contains(word))
}

#[test]
fn every_function_may_fail_and_nothing_leaks() {
    let Some(folder) = mock_or_skip("every_function_may_fail_and_nothing_leaks") else { return };
    let libraries = ["libcuda.so.1", "libcudnn.so.9", "libcublasLt.so.13", "libnvrtc.so.13"];
    let knobs = libraries.map(|library| Knobs::of(folder, library));
    let reset = || knobs.iter().for_each(|knobs| knobs.set("reset", 1));
    let left = || {
        let [driver, cudnn, products, compiler] = &knobs;
        let mut left = driver.ledger();
        let counts = [(cudnn, "descriptors"), (cudnn, "handles"), (products, "objects"), (compiler, "programs")];
        left.extend(counts.map(|(knobs, kind)| (kind, knobs.get(kind))).into_iter().filter(|(_, count)| *count != 0));
        left
    };
    let kept = folder.join("cubins");
    let way = |eager, tunes| Way { eager, tunes, checks: false };
    let checked = Way { checks: true, ..way(true, false) };
    let replayed = way(false, false);
    for (number, way) in [
        (0, replayed),
        (1, replayed),
        (2, replayed),
        (3, replayed),
        (0, way(true, false)),
        (1, checked),
        (0, way(false, true)),
        (1, way(false, true)),
    ] {
        let knobs = &knobs[number];
        // Kernels are compiled again where the compiler is to fail.
        let fresh = || tempfile::tempdir().unwrap();
        let run_with = |at: &mut dyn FnMut()| match number {
            3 => run(folder, fresh().path(), way, at),
            _ => run(folder, &kept, way, at),
        };
        run(folder, &kept, way, &mut || ()).unwrap();
        reset();
        let mut ends = Vec::new();
        run_with(&mut || ends.push(knobs.get("calls"))).unwrap();
        let calls = knobs.calls();
        assert_eq!(left(), [], "{}", libraries[number]);
        ends.push(calls.len() as i64);
        let phase_of = |number: i64| PHASES[ends.iter().position(|&end| number <= end).unwrap()];
        let mut of_function: BTreeMap<_, Vec<i64>> = BTreeMap::new();
        for (number, call) in (1..).zip(&calls) {
            of_function.entry((phase_of(number), call)).or_default().push(number);
        }
        let chosen = |all: &Vec<i64>| [all[0], all[all.len() / 2], all[all.len() - 1]];
        let numbers: BTreeSet<i64> = of_function.values().flat_map(chosen).collect();
        let (mut seen, mut of_phase) = (0, BTreeMap::new());
        for &number in &numbers {
            reset();
            let (call, outcome) = knobs.failing(number, 2, || run_with(&mut || ()));
            let phase = phase_of(number);
            let next = calls.get(number as usize).map_or("nothing", String::as_str);
            let what = format!("{call}, number {number}, before {next}, {phase}, {way:?}");
            *of_phase.entry(phase).or_insert(0) += 1;
            // What fails while something is released is a warning of the device alone; in place of an engine that cannot
            // be planned, the next one is; and where engines cannot be measured, the first one is used. How often they are launched
            // depends on time, so that the phase is not known then.
            let is_measuring = way.tunes;
            let is_planning = call.starts_with("cudnnBackend") && call != "cudnnBackendExecute";
            // The context is made current before each release, those of cuDNN's descriptors while plans are built included.
            let is_release = match call.as_str() {
                "cuCtxSetCurrent" => way.tunes || phase == PHASES[0] || is_release(next),
                _ => is_release(&call),
            };
            match outcome {
                Err(message) => {
                    assert!(!message.contains('\n') && !message.is_empty(), "{what}: {message}");
                    let gives_operations = ["cublasLtMatmul", "cudnnBackendExecute"].contains(&call.as_str());
                    assert!(!gives_operations || message.contains(", for "), "{what}: {message}");
                    seen += 1;
                }
                Ok(()) => {
                    assert!(is_release || is_planning || is_measuring || phase == "releasing", "{what}: no error")
                }
            }
            let left = left();
            assert!(is_release || phase == "releasing" || left.is_empty(), "{what}: {left:?}");
        }
        println!("{}, {way:?}: {seen} of {} failures were seen, {of_phase:?}", libraries[number], numbers.len());
        assert!(way.tunes || seen * 2 > numbers.len(), "{seen} of {} failures were seen", numbers.len());
    }
}
