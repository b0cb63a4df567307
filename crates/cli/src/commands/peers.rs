use crate::args::Common;
use crate::output::{Table, print, print_json};
use anyhow::Context;
use bessemer_bench::peers::process::Runner;
use bessemer_bench::peers::protocol::{Ability, Capabilities, Failure};
use bessemer_bench::peers::{Folders, Peer, Peers, install};
use bessemer_train::{DeviceKind, StopSignal};
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;
use tempfile::TempDir;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer peers list
  bessemer peers setup pytorch
  bessemer peers setup jax --python /usr/bin/python3.12";

/// Other frameworks to compare with: which are there, what they can do, and how to install them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    List(List),
    Setup(Setup),
}

const LIST_EXAMPLES: &str = "\
EXAMPLES:
  bessemer peers list
  bessemer peers list --python venv/bin/python --json";

/// Which frameworks are there, and what they can do
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct List {
    /// Folder of adapters in place of those that come with the program [default: $BESSEMER_PEERS]
    #[arg(long, value_name = "DIR", help_heading = "Frameworks")]
    pub peers: Option<PathBuf>,
    /// One Python with all frameworks in place of those of `bessemer peers setup`
    #[arg(long, value_name = "FILE", help_heading = "Frameworks")]
    pub python: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

const SETUP_EXAMPLES: &str = "\
EXAMPLES:
  bessemer peers setup pytorch
  bessemer peers setup onnxruntime --python python3.12";

/// Install a framework into its own virtual environment
#[derive(Debug, Args)]
#[command(after_help = SETUP_EXAMPLES)]
pub(crate) struct Setup {
    /// A name that `bessemer peers list` shows
    pub name: String,
    /// Folder of adapters in place of those that come with the program [default: $BESSEMER_PEERS]
    #[arg(long, value_name = "DIR", help_heading = "Frameworks")]
    pub peers: Option<PathBuf>,
    /// The Python to make the environment with
    #[arg(long, value_name = "FILE", default_value = "python3", help_heading = "Frameworks")]
    pub python: PathBuf,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    match &options.what {
        What::List(options) => list(options),
        What::Setup(options) => {
            let folders = Folders::of_user(options.peers.clone());
            let place = install(&folders, &options.name, &options.python, |line| common.notify(line))?;
            print(&format!("installed {}\n", place.display()))
        }
    }
}

fn list(options: &List) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("this program's own path is not known")?;
    let peers = Peers::find(&Folders::of_user(options.peers.clone()), &program, options.python.as_deref())?;
    let runner = Runner { program, stop: StopSignal::from_system(None)? };
    let logs = TempDir::with_prefix("bessemer-peers-")?;
    let known: Vec<(&Peer, Result<Capabilities, Failure>)> =
        peers.iter().map(|peer| (peer, peer.describe(&runner, logs.path()))).collect();
    if options.json {
        let one = |(peer, known): &(&Peer, Result<Capabilities, Failure>)| {
            json!({
                "name": peer.name, "title": peer.title, "source": peer.source, "note": peer.note,
                "capabilities": known.as_ref().ok(), "problem": known.as_ref().err().map(ToString::to_string),
            })
        };
        return print_json(&known.iter().map(one).collect::<Vec<_>>());
    }
    let mut table = Table::new(4, &["framework", "version", "forms (* usual)", "work"]);
    for (peer, known) in known {
        match known {
            Ok(known) => table.row([peer.name.clone(), known.version.clone(), forms(&known), work(&known.work)]),
            Err(failure) => table.row([peer.name.clone(), String::new(), failure.to_string()]),
        }
    }
    print(&table.to_string())
}

fn forms(known: &Capabilities) -> String {
    let form = |(name, usual): (&str, bool)| format!("{name}{}", if usual { "*" } else { "" });
    known.variants.iter().map(|variant| form((&variant.name, variant.default))).collect::<Vec<_>>().join(", ")
}

/// `resnet50 train fp32 bf16, infer fp32; efficientdet-d0 infer (network) fp32; ...`
fn work(abilities: &[Ability]) -> String {
    let mut models: Vec<(&str, Vec<String>)> = Vec::new();
    for Ability { model, mode, precisions, emulated, outputs, device } in abilities {
        let native: Vec<&str> = precisions.iter().filter(|name| !emulated.contains(name)).map(String::as_str).collect();
        let ends: Vec<&str> = outputs.iter().map(|outputs| outputs.name()).collect();
        let ends = if ends.is_empty() { String::new() } else { format!(" ({})", ends.join(", ")) };
        let on = if device == DeviceKind::Cpu.name() { String::new() } else { format!(" on {device}") };
        let text = format!("{}{ends} {}{on}", mode.name(), native.join(" "));
        match models.iter_mut().find(|(name, _)| name == model) {
            Some((_, modes)) => modes.push(text),
            None => models.push((model, vec![text])),
        }
    }
    models.sort_by(|a, b| a.1.cmp(&b.1));
    let groups = models.chunk_by(|a, b| a.1 == b.1);
    let text = |group: &[(&str, Vec<String>)]| {
        let names: Vec<&str> = group.iter().map(|(name, _)| *name).collect();
        format!("{}: {}", names.join(" "), group[0].1.join(", "))
    };
    groups.map(text).collect::<Vec<_>>().join("; ")
}
