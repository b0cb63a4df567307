//! Training over a link of a known speed, measured by the command of `crates/cli/examples/links` with its shortest settings.

#[allow(dead_code, reason = "its commands end well")]
#[path = "program/common.rs"]
mod common;
#[path = "../examples/links/measuring.rs"]
mod measuring;
#[allow(dead_code, reason = "another command uses the rest")]
#[path = "../examples/shared/nodes.rs"]
mod nodes;

use common::bessemer;
use measuring::{Setup, measure};
use serde_json::Value;
use std::fs;
use std::io::Write;
use tempfile::TempDir;

#[test]
fn training_is_measured_over_a_link_of_a_known_speed() {
    let folder = TempDir::new().unwrap();
    let setup = |models: &str, out: &str| Setup {
        program: env!("CARGO_BIN_EXE_bessemer").into(),
        out: folder.path().join(out),
        models: vec![models.to_owned()],
        rates: vec![200],
        steps: Some(1),
        repeat: 1,
        mpi: None,
    };
    let unknown = measure(&setup("bert-huge", "none"), |_| ()).unwrap_err();
    assert!(unknown.contains("--models bert-huge: there are bert-tiny, bert-mini"), "{unknown}");
    let mut told = Vec::new();
    if let Err(reason) = measure(&setup("bert-tiny", "links"), |line| told.push(line.to_owned())) {
        assert!(!reason.contains("bessemer bench"), "{reason}");
        // The test harness keeps what is printed by its macros.
        let line = format!("skipped: links between nodes: {reason}\n");
        return std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    assert!(told.iter().any(|line| line.starts_with("2 of 2, ") && line.contains("overlap off")), "{told:?}");
    for overlap in ["on", "off"] {
        let file = folder.path().join(format!("links/bert-tiny-200mbit-overlap-{overlap}.jsonl"));
        let results: Vec<Value> =
            fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [one, two] = &results[..] else { panic!("{results:?}") };
        assert_eq!((&one["nodes"], &two["nodes"], &two["devices"]), (&1.into(), &2.into(), &1.into()));
        assert_eq!(two["options"].get("overlap"), (overlap == "off").then_some(&Value::from(false)));
        let hosts = two["scaling"]["together"]["slowest"]["host"].as_str().unwrap();
        assert!(hosts.starts_with("bessemer") && (hosts.ends_with("n0") || hosts.ends_with("n1")), "{hosts}");
        // 17.5 MB of gradients take 0.7 s at 200 Mbit/s, by a link as it was measured. A slow processor sends most of them beside its
        // backward pass, where it may.
        let simulated = two["scaling"]["simulated"]["exposed_ms"].as_f64().unwrap();
        let measured = two["scaling"]["together"]["exposed_ms"].as_f64().unwrap();
        let is_exposed = measured > 400.0 || overlap == "on";
        assert!(simulated > 400.0 && is_exposed, "{simulated} ms simulated, {measured} ms");
    }
    let report = bessemer(folder.path(), "report links").ok().out;
    for title in ["1 thread a rank, on 200mbit", "1 thread a rank, without overlap, on 200mbit"] {
        let table = report.split(title).nth(1).unwrap_or_else(|| panic!("{title}: {report}"));
        assert!(table.contains("error of perfect scaling") && table.contains("| 2 | 1 | 8 |"), "{report}");
    }
    let again = measure(&setup("bert-tiny", "links"), |_| ()).unwrap_err();
    assert!(again.contains("must be new or empty"), "{again}");
}
