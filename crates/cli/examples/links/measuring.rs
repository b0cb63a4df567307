//! `bench train --scaling` on two nodes, for each link, model, and with and without overlap.

use crate::nodes::{Nodes, Rate, Result};
use bessemer_bench::doctor::RankLink;
use bessemer_comm::mpi::Family;
use bessemer_comm::spawn::MpiLauncher;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// What is to be measured.
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    pub(crate) out: PathBuf,
    /// Names of [`MODELS`].
    pub(crate) models: Vec<String>,
    /// Megabits a second.
    pub(crate) rates: Vec<u64>,
    pub(crate) steps: Option<u64>,
    pub(crate) repeat: u64,
    pub(crate) mpi: Option<String>,
}

/// A model that can be measured.
struct Model {
    name: &'static str,
    batch_size: usize,
    /// The slowest link over which a step does not take minutes, in megabits a second.
    slowest: u64,
}

const MODELS: [Model; 4] = [
    Model { name: "bert-tiny", batch_size: 8, slowest: 1 },
    Model { name: "bert-mini", batch_size: 8, slowest: 10 },
    Model { name: "resnet20-cifar", batch_size: 32, slowest: 1 },
    Model { name: "resnet50", batch_size: 16, slowest: 100 },
];

/// One measurement.
struct Case<'a> {
    model: &'a Model,
    overlap: &'static str,
}

/// Makes all measurements, and tells how far it is.
///
/// # Errors
/// What is asked for is not known, this system cannot make nodes, or a measurement fails.
pub(crate) fn measure(setup: &Setup, mut tell: impl FnMut(&str)) -> Result<()> {
    let begun = Instant::now();
    let find = |name: &String| {
        let names = MODELS.map(|model| model.name).join(", ");
        MODELS.iter().find(|model| model.name == *name).ok_or_else(|| format!("--models {name}: there are {names}"))
    };
    let models = setup.models.iter().map(find).collect::<Result<Vec<&Model>>>()?;
    let program = setup.program.canonicalize().map_err(|error| format!("{}: {error}", setup.program.display()))?;
    let out = empty_folder(&setup.out)?;
    let family = setup.mpi.as_ref().map(|name| if name == "mpich" { Family::Mpich } else { Family::OpenMpi });
    let search = std::env::var_os("PATH").unwrap_or_default();
    let launcher = MpiLauncher::find(&search, family).map_err(|error| error.to_string())?;
    let files = tempfile::tempdir().map_err(|error| error.to_string())?;
    let nodes = Nodes::new(2, files.path())?;
    let cases = |rate: u64| {
        let possible = models.iter().filter(move |model| rate >= model.slowest);
        possible.flat_map(|&model| ["on", "off"].map(|overlap| Case { model, overlap }))
    };
    let all: usize = setup.rates.iter().map(|&rate| cases(rate).count()).sum();
    let mut number = 0;
    tell(&format!("{all} measurements on two nodes by {}", launcher.version));
    for &rate in &setup.rates {
        nodes.limit(Rate(rate))?;
        let links = Links { program: &program, out: &out, launcher: &launcher, nodes: &nodes, rate };
        let link = links.probe()?;
        tell(&format!(
            "{rate} Mbit/s: {:.1} Mbit/s with a latency of {:.0} us as measured",
            link.bytes_per_s * 8e-6,
            link.latency_s * 1e6
        ));
        let cluster = links.describe(link)?;
        for case in cases(rate) {
            number += 1;
            let Case { model, overlap } = &case;
            tell(&format!(
                "{number} of {all}, {:.0} s so far: {} over {rate} Mbit/s, overlap {overlap}",
                begun.elapsed().as_secs_f64(),
                model.name
            ));
            links.measure(&case, &cluster, setup)?;
        }
    }
    tell(&format!(
        "{:.0} s; `bessemer report {}` makes tables of it",
        begun.elapsed().as_secs_f64(),
        setup.out.display()
    ));
    Ok(())
}

/// Two nodes and the link between them.
struct Links<'a> {
    program: &'a Path,
    out: &'a Path,
    launcher: &'a MpiLauncher,
    nodes: &'a Nodes,
    rate: u64,
}

impl Links<'_> {
    /// Runs the program on a rank of each node; what it prints.
    fn run(&self, arguments: &[OsString], log: &Path) -> Result<String> {
        let failed = |error: std::io::Error| format!("{}: {error}", log.display());
        let mut command = self.nodes.launch(self.launcher, self.program.as_os_str(), arguments)?;
        let errors = File::create(log).map_err(failed)?;
        let output = command.current_dir(self.out).stderr(Stdio::from(errors)).output().map_err(failed)?;
        if output.status.success() {
            // A log of what went well says nothing more than the results.
            fs::remove_file(log).map_err(failed)?;
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = fs::read_to_string(log).unwrap_or_default();
        let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Err(format!("bessemer {} ended with {}:\n{said}", words.join(" "), output.status))
    }

    /// What a message between the nodes costs.
    fn probe(&self) -> Result<RankLink> {
        let said = self.run(&["rank-probe".into()], &self.out.join("probe.log"))?;
        serde_json::from_str(&said).map_err(|error| format!("rank-probe printed {said:?}: {error}"))
    }

    /// The name of a file for the simulator, in the folder of results.
    fn describe(&self, link: RankLink) -> Result<String> {
        let name = format!("{}mbit.toml", self.rate);
        let path = self.out.join(&name);
        let (latency_us, gbytes) = (link.latency_s * 1e6, link.bytes_per_s / 1e9);
        let link = format!("latency_us = {latency_us:.3}\ngbytes = {gbytes:.9}\n");
        let text = format!(
            "description = \"two nodes, {rate} Mbit/s\"\nsource = \"measured between the two ranks\"\nnodes = 2\ndevices = 1\n\
             collectives = \"messages\"\n\n[inside]\n{link}\n[between]\n{link}",
            rate = self.rate
        );
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(name)
    }

    fn measure(&self, case: &Case<'_>, cluster: &str, setup: &Setup) -> Result<()> {
        let Case { model: Model { name, batch_size, .. }, overlap } = case;
        let results = format!("{name}-{}mbit-overlap-{overlap}", self.rate);
        let steps = setup.steps.unwrap_or(match self.rate {
            500.. if *name == "resnet50" => 4,
            500.. => 10,
            50.. if *name == "resnet50" => 3,
            50.. => 5,
            _ => 2,
        });
        let words = format!(
            "bench train {name} --batch-size {batch_size} --threads 1 --scaling 1x1,2x1 --overlap {overlap} --method dlperf --warmup 1 \
             --steps {steps} --repeat {} --json --simulate",
            setup.repeat
        );
        let mut arguments: Vec<OsString> = words.split(' ').map(Into::into).collect();
        arguments.push(cluster.into());
        let said = self.run(&arguments, &self.out.join(format!("{results}.log")))?;
        let path = self.out.join(format!("{results}.jsonl"));
        fs::write(&path, said).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn empty_folder(path: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path).map_err(failed)?;
    match fs::read_dir(path).map_err(failed)?.next() {
        None => path.canonicalize().map_err(failed),
        Some(_) => Err(format!("{} must be new or empty", path.display())),
    }
}
