//! Training on a GPU that ends in the midst of it, over the mock of one: processes that are killed at calls of the driver, and calls that fail
//! while a checkpoint is saved. Older checkpoints stay whole, and runs go on from them to the same bits.

use crate::common::{Ran, ran};
use crate::machine::{FILES, Machine, TRAIN};
use std::collections::BTreeMap;
use std::fs;
use std::ops::{Range, RangeInclusive};

/// Steps of a run, of which every second one is saved.
const STEPS: usize = 4;
/// The least calls of the driver while a checkpoint is saved, which are more than copy the results of a step.
const CALLS_OF_A_SAVE: usize = 100;

/// Files of checkpoints, by the names of their folders.
type Checkpoints = BTreeMap<String, Vec<Vec<u8>>>;

/// A run that nothing disturbs.
struct Undisturbed {
    machine: Machine,
    losses: BTreeMap<u64, f64>,
    checkpoints: Checkpoints,
    /// Calls of the driver, in order.
    calls: Vec<String>,
}

/// A run into the folder `out`, whose mock has these variables.
fn train(machine: &Machine, options: &str, out: &str, variables: &[(&str, &str)]) -> Ran {
    let on = format!("--device cuda {options} --tuning off --gpu-libraries {}", machine.mocks.display());
    ran(machine.command(&format!("{TRAIN} --steps {STEPS} --out {out} {on}")).envs(variables.iter().copied()))
}

/// All that may be taken for checkpoints of a run.
fn checkpoints(machine: &Machine, run: &str) -> Checkpoints {
    let folder = machine.path(run).join("checkpoints");
    let names = fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("step-"));
    let files = |name: &String| FILES.iter().map(|file| fs::read(folder.join(name).join(file)).unwrap()).collect();
    names.map(|name| (name.clone(), files(&name))).collect()
}

impl Undisturbed {
    fn new(test: &str, options: &str) -> Option<Undisturbed> {
        let machine = Machine::new(test)?;
        let names = machine.path("calls");
        train(&machine, options, "whole", &[("MOCK_CALLS", names.to_str().unwrap())]).ok();
        let calls = fs::read_to_string(names).unwrap().lines().map(str::to_owned).collect();
        let checkpoints = checkpoints(&machine, "whole");
        assert!(checkpoints.keys().eq(["step-000002", "step-000004"]));
        let losses: BTreeMap<u64, f64> = machine.steps("whole").into_iter().collect();
        assert_eq!(losses.len(), STEPS);
        Some(Undisturbed { machine, losses, checkpoints, calls })
    }

    /// Numbers, from 1, of the calls of this name.
    fn numbers(&self, call: &str) -> Vec<usize> {
        (1..).zip(&self.calls).filter(|(_, name)| *name == call).map(|(number, _)| number).collect()
    }

    /// Numbers of the calls of each save of a checkpoint, from the first copy to the host to the last that is waited for.
    fn saves(&self) -> [Range<usize>; 2] {
        let is_read = |name: &str| ["cuCtxSetCurrent", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"].contains(&name);
        let mut first = 1;
        let mut saves = Vec::new();
        for calls in self.calls.split_inclusive(|name| !is_read(name)) {
            if calls.len() >= CALLS_OF_A_SAVE {
                let copy = calls.iter().position(|name| name == "cuMemcpyDtoHAsync_v2").unwrap();
                let wait = calls.iter().rposition(|name| name == "cuStreamSynchronize").unwrap();
                saves.push(first + copy..first + wait + 1);
            }
            first += calls.len();
        }
        saves.try_into().expect("two checkpoints are saved")
    }

    /// Checkpoints of a run that ended early are those of this one. Their names.
    fn are_whole(&self, run: &str) -> Vec<String> {
        let found = checkpoints(&self.machine, run);
        assert!(
            found.iter().all(|(name, files)| *files == self.checkpoints[name]),
            "{run}: a checkpoint is another one"
        );
        found.into_keys().collect()
    }

    /// The run goes on from its last checkpoint, or from the beginning, to the bits of this one.
    fn is_reached(&self, run: &str) {
        self.machine.run_on("cuda", &format!("train --resume {run} --quiet")).ok();
        assert!(checkpoints(&self.machine, run) == self.checkpoints, "{run}: resumed, it has other bits");
        let losses = self.machine.steps(run);
        assert!(losses.iter().all(|(step, loss)| *loss == self.losses[step]), "{run}: {losses:?}, {:?}", self.losses);
        assert_eq!(losses.last().map(|(step, _)| *step), Some(STEPS as u64), "{run}");
    }

    /// Runs that are killed at these calls have so many checkpoints, and go on from there.
    fn survives(&self, options: &str, kills: &[(usize, RangeInclusive<usize>)]) {
        for (number, saved) in kills {
            let (run, at) = (format!("killed-{number}"), number.to_string());
            let ran = train(&self.machine, options, &run, &[("MOCK_KILL_AT", &at)]);
            assert!(ran.code == -1 && ran.err.is_empty(), "{run}: {}", ran.err);
            let found = self.are_whole(&run).len();
            assert!(saved.contains(&found), "{run}, at {}: {found} checkpoints", self.calls[number - 1]);
            self.is_reached(&run);
        }
    }
}

/// In the first step, which is launched, at the last one, which is replayed, at a middle and the last call of a save, behind it, while the
/// checkpoint may be on its way to the disk, and within the second save, which comes behind an evaluation.
#[test]
fn runs_that_are_killed_go_on_to_the_same_bits() {
    let Some(whole) = Undisturbed::new("runs_that_are_killed_go_on_to_the_same_bits", "") else { return };
    let launches = whole.numbers("cuLaunchKernel");
    let replays = whole.numbers("cuGraphLaunch");
    assert_eq!(replays.len(), STEPS - 1);
    let [first, second] = whole.saves();
    assert!(replays[0] < first.start && first.end <= replays[1] && replays[2] < second.start);
    let middle = |save: &Range<usize>| (save.start + save.end) / 2;
    let kills = [
        (launches[launches.len() / 4], 0..=0),
        (middle(&first), 0..=0),
        (first.end - 1, 0..=0),
        (first.end, 0..=1),
        (replays[2], 0..=1),
        (middle(&second), 1..=1),
    ];
    whole.survives("", &kills);
}

/// Steps that are launched kernel by kernel, killed within the third and within the fourth one.
#[test]
fn runs_that_are_killed_at_launches_go_on_to_the_same_bits() {
    let test = "runs_that_are_killed_at_launches_go_on_to_the_same_bits";
    let Some(whole) = Undisturbed::new(test, "--eager") else { return };
    let [first, second] = whole.saves();
    let launches = whole.numbers("cuLaunchKernel");
    let between: Vec<usize> =
        launches.into_iter().filter(|number| (first.end..second.start).contains(number)).collect();
    // The evaluation behind the two steps is shorter than one of them.
    let at = |part: usize| (between[between.len() * part / 8], 0..=1);
    whole.survives("--eager", &[at(1), at(5)]);
}

/// The first, a middle and the last call that a save makes, with errors that the device recovers from and one that it does not.
#[test]
fn a_save_that_fails_leaves_older_checkpoints_whole() {
    let Some(whole) = Undisturbed::new("a_save_that_fails_leaves_older_checkpoints_whole", "") else { return };
    let [_, second] = whole.saves();
    let middle = (second.start + second.end) / 2;
    for (number, code, said) in [
        (second.start, "2", "CUDA_ERROR_OUT_OF_MEMORY"),
        (middle, "700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (second.end - 1, "1", "CUDA_ERROR_INVALID_VALUE"),
    ] {
        let (run, at) = (format!("fails-{number}"), number.to_string());
        let ran = train(&whole.machine, "", &run, &[("MOCK_FAIL_AT", &at), ("MOCK_FAIL_CODE", code)]);
        let ran = ran.fails(1, &[&format!(" failed with code {code}: {said}")]);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        assert_eq!(whole.are_whole(&run), ["step-000002"], "{run}");
        let latest = fs::read_to_string(whole.machine.path(&run).join("checkpoints/latest")).unwrap();
        assert_eq!(latest.trim(), "step-000002");
        whole.is_reached(&run);
    }
}
