//! Public data sets: download and unpack.

use crate::args::{Common, output_folder};
use crate::failure::Usage;
use crate::output::{Table, print, print_json};
use anyhow::bail;
use bessemer_fetch::{DataSet, Options, Report, data_sets, fetch, read_data_sets};
use bessemer_train::StopSignal;
use bessemer_train::progress::Span;
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer data fetch --list
  bessemer data fetch imagenette
  bessemer data fetch coco2017-val --out coco/
  bessemer data fetch squad1.1 --from http://mirror.local/squad";

/// Download a public data set and unpack it to what training reads
///
/// After an interruption (Ctrl-C) or a lost connection the same command goes on where it ended. Files are compared with
/// their published checksums, and archives are removed once they are unpacked. Proxies are taken from HTTPS_PROXY and
/// HTTP_PROXY. Certificates of servers are checked against Mozilla's roots, or against the file of certificates that SSL_CERT_FILE
/// names (PEM). Each data set has its own licence. The addresses were not tried when this was written.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Fetch {
    /// Data set, of those that `--list` shows
    #[arg(required_unless_present = "list")]
    pub name: Option<String>,
    /// Show the data sets
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
    /// TOML table of other data sets, in the form that docs/data-sets.md describes
    #[arg(long, value_name = "FILE", help_heading = "Download")]
    pub sets: Option<PathBuf>,
    /// Address of a folder to take the files from, by their names, instead of their own addresses
    #[arg(long, value_name = "URL", help_heading = "Download")]
    pub from: Option<String>,
    /// Folder to write [default: the name of the data set]
    #[arg(long, value_name = "DIR", value_parser = output_folder(), help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub(super) fn run_fetch(options: &Fetch, common: &Common) -> anyhow::Result<()> {
    let sets = match &options.sets {
        Some(path) => read_data_sets(path)?,
        None => data_sets(),
    };
    let Some(name) = &options.name else {
        return if options.json { print_json(&sets) } else { print(&list(&sets)) };
    };
    let Some(set) = sets.iter().find(|set| set.name == *name) else {
        let known: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
        bail!(Usage(format!("'{name}' is no data set that is known; allowed: {}", known.join(", "))));
    };
    if let Some(from) =
        options.from.as_ref().filter(|from| !from.starts_with("http://") && !from.starts_with("https://"))
    {
        bail!(Usage(format!("--from: '{from}' is no address; expected http:// or https://")));
    }
    let folder = options.out.clone().unwrap_or_else(|| set.name.clone().into());
    let stop = StopSignal::from_system(None)?;
    common.notify(&format!("{}: licence: {}", set.name, set.licence));
    let notify = common.notifier();
    let fetching = Options {
        from: options.from.clone(),
        certificates: std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from),
        attempts: 6,
        pause: Duration::from_secs(1),
        patience: Duration::from_secs(60),
        is_stopped: &|| stop.is_raised(),
        report: &|report| match report {
            Report::Bytes { name, done, total, rate } => notify(&|| progress_line(name, done, total, rate)),
            Report::Again { name, reason } => common.notify(&format!("{name}: {reason}; it is tried again")),
            Report::Unchecked { name, sha256 } => {
                common.notify(&format!("{name}: SHA-256 {sha256}; nothing was there to compare it with"))
            }
            Report::Unpacking { name } => common.notify(&format!("{name}: unpacking")),
        },
    };
    let files = fetch(set, &folder, &fetching)?;
    let next = next_command(set, &folder);
    if options.json {
        return print_json(&json!({ "name": set.name, "folder": folder, "files": files, "next": next }));
    }
    let folder = folder.display();
    match files {
        0 => print(&format!("{folder}: complete already, nothing is done\nnext: {next}\n")),
        _ => print(&format!("{folder}: {} is complete\nnext: {next}\n", set.name)),
    }
}

fn next_command(set: &DataSet, folder: &Path) -> String {
    set.next.replace("DIR", folder.to_string_lossy().trim_end_matches('/'))
}

fn list(sets: &[DataSet]) -> String {
    let mut table = Table::new(3, &["name", "what it is", "licence", "MB"]);
    for set in sets {
        table.row([set.name.clone(), set.about.clone(), set.licence.clone(), mega(set.bytes())]);
    }
    format!("{table}The addresses were not tried when this was written.\n")
}

fn progress_line(name: &str, done: u64, total: Option<u64>, rate: f64) -> String {
    let speed = format!("{:.1} MB/s", rate / 1e6);
    match total {
        Some(total) => {
            let left = Span(total.saturating_sub(done) as f64 / rate.max(1.0));
            format!("{name}: {} of {} MB, {speed}, {left} left", mega(done), mega(total))
        }
        None => format!("{name}: {} MB, {speed}", mega(done)),
    }
}

fn mega(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn progress_has_bytes_rate_and_time_left() {
        let line = progress_line("a.zip", 25_000_000, Some(100_000_000), 1e6);
        assert_eq!(line, "a.zip: 25.0 of 100.0 MB, 1.0 MB/s, 1 min 15 s left");
    }

    #[test]
    fn next_commands_are_accepted() {
        for set in data_sets() {
            let command = next_command(&set, Path::new("data/"));
            assert!(command.contains("data") && !command.contains("DIR"));
            Cli::try_parse_from(command.split(' ')).unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }
}
