//! Training on several devices, simulated.

use crate::common::bessemer;
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn a_model_is_simulated_on_a_cluster() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), &format!("explain {arguments}")).ok().out;
    let table = run("bert-tiny --cluster v100x8-ib100");
    let rows = ["1 x 1 ", "1 x 8 ", "2 x 8 ", "4 x 8 "];
    assert!(rows.iter().all(|row| table.lines().any(|line| line.starts_with(row))), "{table}");
    assert!(table.contains("InfiniBand") && table.contains("efficiency") && table.contains("V100"), "{table}");

    let json = |arguments: &str| -> Value { serde_json::from_str(&run(&format!("{arguments} --json"))).unwrap() };
    let plain = json("resnet50 --batch-size 64 --cluster h200x8 --nodes 2,4");
    let rows = plain["rows"].as_array().unwrap();
    let nodes: Vec<u64> = rows.iter().map(|row| row["ranks"]["nodes"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [1, 2, 4]);
    assert_eq!(plain["gradient_bytes"], 4 * 25_557_032_u64);
    let efficiency: Vec<f64> = rows.iter().map(|row| row["efficiency"].as_f64().unwrap()).collect();
    assert!(efficiency[0] == 1.0 && efficiency.is_sorted_by(|a, b| a >= b) && efficiency[2] > 0.5, "{efficiency:?}");

    let shared = json("resnet50 --batch-size 64 --cluster h200x8 --nodes 2,4 --norms-over all --accumulation 2");
    assert_eq!((&shared["gradient_bytes"], &plain["micro_batch_sums"]), (&plain["gradient_bytes"], &Value::from(0)));
    assert!(shared["micro_batch_sums"].as_u64().unwrap() >= 2 * 4 * 49, "{shared}");
    let apart = json("resnet50 --batch-size 64 --cluster h200x8 --nodes 2,4 --overlap off");
    let exposed = |table: &Value| table["rows"][1]["exposed_seconds"].as_f64().unwrap();
    assert!(exposed(&shared) > exposed(&plain) && exposed(&apart) > exposed(&plain), "{shared} {apart} {plain}");
    let said = run("resnet50 --batch-size 64 --cluster h200x8 --nodes 2 --norms-over all --overlap off");
    assert!(said.contains("sums that micro-batches wait for, without overlap"), "{said}");

    let starved = json("resnet50 --batch-size 64 --cluster h200x8 --nodes 2 --input-rate 1000");
    let last = &starved["rows"][1];
    assert_eq!((&last["binds"], &last["throughput"]), (&Value::from("input"), &Value::from(2000.0)));
}

#[test]
fn a_measured_step_is_simulated_on_a_cluster_of_ones_own() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments).ok().out;
    run("bench train bert-tiny --batch-size 2 --accumulation 3 --warmup 0 --steps 1 --repeat 1 --step-profile s.json");
    let cluster = "description = 'two machines'\nsource = 'measured'\nnodes = 2\ndevices = 1\n\
                   collectives = 'messages'\n[inside]\nlatency_us = 1\ngbytes = 10\n[between]\nlatency_us = 50\ngbytes = 0.1\n";
    std::fs::write(folder.path().join("own.toml"), cluster).unwrap();
    let table = run("explain bert-tiny --cluster own.toml --profile s.json");
    assert!(table.contains("kernels as measured") && table.contains("training of 6 sequences a rank"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("2 x 1 ")), "{table}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &str| bessemer(folder.path(), arguments);
    run("explain bert-tiny --cluster h300x8").fails(2, &["h300x8", "built in", "h200x8"]);
    run("explain bert-tiny --cluster h200x8 --nodes 1,64").fails(2, &["h200x8 has 4 nodes, not 64"]);
    run("explain bert-tiny --cluster h200x8 --mode infer").fails(2, &["--cluster", "train"]);
    run("explain bert-tiny --nodes 2").fails(2, &["--cluster"]);
    run("explain bert-tiny --overlap off").fails(2, &["--overlap is for --cluster"]);
    run("explain bert-tiny --cluster h200x8 --norms-over both").fails(2, &["--norms-over", "allowed: rank, all"]);
    run("bench train bert-tiny --means-over all").fails(2, &["--means-over is for --scaling and --step-profile"]);
    run("explain bert-tiny --cluster h200x8 --input-rate 0").fails(2, &["--input-rate", "above 0"]);
    run("explain bert-tiny --cluster h200x8 --profile absent.json").fails(2, &["absent.json", "No such file"]);
    std::fs::write(folder.path().join("bad.toml"), "nodes = 2\n").unwrap();
    run("explain bert-tiny --cluster bad.toml").fails(2, &["bad.toml", "missing field"]);
    run("bench infer bert-tiny --step-profile s.json").fails(2, &["--step-profile", "training"]);
}

#[test]
fn the_simulator_is_held_against_published_tables() {
    let folder = TempDir::new().unwrap();
    let summary = bessemer(folder.path(), "bench simulator --summary").ok().out;
    let sets: Vec<&str> = summary.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(sets, ["A", "B", "C", "D", "E"], "{summary}");
}
