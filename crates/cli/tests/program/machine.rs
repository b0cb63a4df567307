//! A machine with a GPU that is none, for tests of the program.

use crate::common::{Ran, ran};
use crate::mock::mock_or_skip;
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder of runs, and where the mocks are.
pub(crate) struct Machine {
    pub(crate) folder: TempDir,
    pub(crate) mocks: &'static Path,
}

impl Machine {
    pub(crate) fn new(test: &str) -> Option<Machine> {
        let mocks = mock_or_skip(test)?;
        Some(Machine { folder: TempDir::new().unwrap(), mocks })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        // Kernels that one test compiled serve all.
        command.env("XDG_CACHE_HOME", self.mocks.join("cache"));
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Ran {
        ran(&mut self.command(arguments))
    }

    /// With `--device`, and a GPU to be found.
    pub(crate) fn run_on(&self, device: &str, arguments: &str) -> Ran {
        self.run(&format!("{arguments} --device {device} --tuning off --gpu-libraries {}", self.mocks.display()))
    }

    pub(crate) fn checkpoint(&self, run: &str, step: u64, file: &str) -> Vec<u8> {
        fs::read(self.path(run).join(format!("checkpoints/step-{step:06}")).join(file)).unwrap()
    }

    /// Steps of a run with their losses, those behind a checkpoint perhaps twice.
    pub(crate) fn steps(&self, run: &str) -> Vec<(u64, f64)> {
        let events = fs::read_to_string(self.path(run).join("events.jsonl")).unwrap();
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps = events.filter(|event| event["kind"] == "step");
        steps.map(|event| (event["step"].as_u64().unwrap(), event["loss"].as_f64().unwrap())).collect()
    }

    /// Losses of the steps of a run.
    pub(crate) fn losses(&self, run: &str) -> Vec<f64> {
        self.steps(run).into_iter().map(|(_, loss)| loss).collect()
    }

    /// Devices that the parts of a run were made on.
    pub(crate) fn devices(&self, run: &str) -> Vec<String> {
        let events = fs::read_to_string(self.path(run).join("events.jsonl")).unwrap();
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let devices = events.filter(|event| event["kind"] == "run").map(|event| event["device"].clone());
        devices.map(|device| device.as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) const TRAIN: &str = "train resnet20-cifar --data shapes --quiet --set train.batch_size=2 --set eval.batch_size=4 \
                     --set data.eval_samples=4 --set data.train_samples=8 --set schedule.warmup_epochs=0 \
                     --set data.image_size=16 --set data.eval_image_size=16 --set data.eval_resize=16 \
                     --set checkpoint.every_steps=2 --set checkpoint.keep=9";
pub(crate) const FILES: [&str; 2] = ["model.safetensors", "optimizer.safetensors"];

pub(crate) fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok().out).unwrap()
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
}

/// Names and bytes of all tensors but counters.
pub(crate) fn tensors(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let file = SafeTensors::deserialize(file).unwrap();
    let tensors = file.tensors().into_iter().filter(|(_, tensor)| !tensor.shape().is_empty());
    tensors.map(|(name, tensor)| (name, tensor.data().to_vec())).collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// The largest difference between two checkpoints, relative to the largest element of each tensor.
pub(crate) fn difference(x: &[u8], y: &[u8]) -> f32 {
    let (x, y) = (tensors(x), tensors(y));
    assert!(x.keys().eq(y.keys()) && !x.is_empty());
    let of_tensor = |(x, y): (&Vec<u8>, &Vec<u8>)| {
        let (x, y) = (floats(x), floats(y));
        let largest = x.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
        x.iter().zip(&y).map(|(x, y)| (x - y).abs() / largest).fold(0.0, f32::max)
    };
    x.values().zip(y.values()).map(of_tensor).fold(0.0, f32::max)
}
