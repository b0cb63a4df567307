//! What `bessemer doctor` says of GPUs: of none, of broken and mixed libraries, of one and of two; and their self-test.

use crate::common::Ran;
use crate::mock::{mock_or_skip, skip};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Runs the doctor where no Python environment is active.
fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    bessemer(&[&["doctor"], arguments].concat(), environment)
}

fn bessemer(arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bessemer"));
    command.args(arguments).envs(environment.iter().copied());
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PATH"] {
        if !environment.iter().any(|(set, _)| *set == name) {
            command.env_remove(name);
        }
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// The lines of the table, blanks joined, that begin with `name`.
fn rows(ran: &Ran, name: &str) -> Vec<String> {
    let lines = ran.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter_map(|line| line.strip_prefix(&format!("{name} ")).map(str::to_owned)).collect()
}

/// The report as text, printed without a panic.
fn words(folder: &Path, environment: &[(&str, &str)]) -> Ran {
    let text = doctor(&["--gpu-libraries", folder.to_str().unwrap()], environment).ok();
    assert!(!text.err.contains("panicked"), "{}", text.err);
    text
}

/// Both forms of the report.
fn both(folder: &Path, environment: &[(&str, &str)]) -> (Ran, Value) {
    let json = doctor(&["--json", "--gpu-libraries", folder.to_str().unwrap()], environment).ok();
    (words(folder, environment), serde_json::from_str(&json.out).unwrap())
}

#[test]
fn a_machine_without_cuda() {
    let (text, json) = (doctor(&[], &[]).ok(), doctor(&["--json"], &[]).ok());
    let json: Value = serde_json::from_str(&json.out).unwrap();
    if !json["cuda"]["no_gpu"].as_str().is_some_and(|reason| reason.contains("there is no libcuda.so.1")) {
        return skip("doctor without CUDA", "this machine has NVIDIA's driver");
    }
    let said = rows(&text, "GPU");
    assert_eq!(said.len(), 1, "{}", text.out);
    assert!(said[0].starts_with("no GPU: there is no libcuda.so.1 (NVIDIA's driver) in the "), "{}", said[0]);
    assert!(said[0].ends_with("folders looked in; models run on the CPU"), "{}", said[0]);
    assert!(rows(&text, "GPU use").is_empty(), "it is said already");
    assert_eq!(json["gpu"].as_str().unwrap(), said[0].strip_suffix("; models run on the CPU").unwrap());
    assert_eq!(json["cuda"]["problems"], Value::Array(Vec::new()));
    assert_eq!(json["cuda"]["looked_in"].as_array().unwrap().len(), 3);
}

#[test]
fn a_broken_driver() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("libcuda.so.1"), "\u{7f}ELF but no more").unwrap();
    let (text, json) = both(folder.path(), &[]);
    let said = &rows(&text, "GPU")[0];
    assert!(said.starts_with("no GPU: ") && said.contains("libcuda.so.1 cannot be opened: "), "{said}");
    let advice = rows(&text, "advice").join("\n");
    assert!(advice.contains("cannot be opened") && advice.contains("install or repair NVIDIA's driver"), "{advice}");
    assert!(json["cuda"]["driver"].is_null() && json["cuda"]["problems"].as_array().unwrap().len() == 1);
}

#[test]
fn mixed_versions_of_cuda() {
    let folder = TempDir::new().unwrap();
    for name in ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libcublasLt.so.12", "libcudnn.so.9"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let (text, json) = both(folder.path(), &[]);
    let advice = rows(&text, "advice").join("\n");
    assert_eq!(advice.matches("libraries of different CUDA versions").count(), 1, "{advice}");
    assert!(advice.contains("libnvrtc-builtins.so.13.0 is of CUDA 13, "), "{advice}");
    assert!(advice.contains("libcublasLt.so.12 of CUDA 12: name the folder of one complete set"), "{advice}");
    assert!(rows(&text, "GPU library").iter().all(|library| library.starts_with("not opened, ")), "{}", text.out);
    assert_eq!(json["cuda"]["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn libraries_of_the_python_environment() {
    let folder = TempDir::new().unwrap();
    let packages = folder.path().join("lib/python3.12/site-packages/nvidia");
    for name in ["cu13/lib/libnvrtc.so.13", "cublas/lib/libcublasLt.so.12"] {
        std::fs::create_dir_all(packages.join(name).parent().unwrap()).unwrap();
        std::fs::write(packages.join(name), "").unwrap();
    }
    let environment = [("VIRTUAL_ENV", folder.path().to_str().unwrap())];
    let json = doctor(&["--json"], &environment).ok();
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let libraries = json["cuda"]["libraries"].as_array().unwrap();
    let nvrtc = libraries.iter().find(|library| library["name"] == "libnvrtc.so").unwrap();
    assert_eq!(nvrtc["place"], "python");
    let problem = json["cuda"]["problems"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("libraries of different CUDA versions"), "{problem}");
}

#[test]
fn one_gpu_and_two() {
    let Some(folder) = mock_or_skip("doctor with GPUs") else { return };
    let (text, json) = both(folder, &[]);
    assert_eq!(rows(&text, "GPU")[0], "0: NVIDIA H200 (mock), 140 GiB, sm_90a");
    assert!(rows(&text, "GPU driver")[0].starts_with("runs CUDA up to 13.0, "), "{}", text.out);
    assert!(rows(&text, "GPU library")[0].starts_with("13.0, "), "{}", text.out);
    assert!(rows(&text, "GPU use")[0].starts_with("--device cuda works; "), "{}", text.out);
    assert_eq!(json["gpu_use"], serde_json::json!({"device": "cuda", "problem": null}));
    assert!(rows(&text, "not found")[0].contains("libcublas.so (matrix products)"), "{}", text.out);
    let versions: Vec<&Value> = json["cuda"]["libraries"].as_array().unwrap().iter().map(|l| &l["version"]).collect();
    assert!(versions.contains(&&Value::from("9.19.0")) && versions.contains(&&Value::from("2.28.9")), "{versions:?}");
    assert_eq!(json["cuda"]["devices"].as_array().unwrap().len(), 1);
    assert_eq!(json["cuda"]["devices"][0]["capability"], serde_json::json!([9, 0]));

    let second = |devices| {
        let arguments = ["--device", "cuda:1", "--gpu-libraries", folder.to_str().unwrap()];
        let text = doctor(&arguments, &[("MOCK_DEVICES", devices)]).ok();
        rows(&text, "GPU use").remove(0)
    };
    assert_eq!(second("1"), "--device cuda:1 does not work: there is no GPU number 1; the driver sees 1");
    assert!(second("2").starts_with("--device cuda:1 works"));

    let text = words(folder, &[("MOCK_DEVICES", "2")]);
    assert!(text.out.contains("0: NVIDIA H200") && text.out.contains("1: NVIDIA H200"), "{}", text.out);
}

#[test]
fn a_driver_that_does_not_start_or_is_too_old() {
    let Some(folder) = mock_or_skip("doctor with a driver that does not start") else { return };
    let text = words(folder, &[("MOCK_DEVICES", "0")]);
    let said = &rows(&text, "GPU")[0];
    let reason = "no GPU: cuInit failed with code 100: CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected";
    assert!(said.starts_with(reason), "{said}");
    let text = words(folder, &[("MOCK_INIT_CODE", "803")]);
    assert!(rows(&text, "GPU")[0].contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{}", text.out);
    let text = words(folder, &[("MOCK_DRIVER_VERSION", "12080")]);
    let advice = rows(&text, "advice").join("\n");
    assert!(advice.contains("the driver runs CUDA up to 12.8, ") && advice.contains("is of CUDA 13"), "{advice}");
    assert!(rows(&text, "GPU")[0].starts_with("0: NVIDIA H200"), "{}", text.out);
}

#[test]
fn a_folder_that_does_not_exist_is_refused() {
    doctor(&["--gpu-libraries", "nowhere"], &[]).fails(2, &["'nowhere'", "--gpu-libraries", "no such folder"]);
}

/// The self-test over mocks: everything passes, and has the figures that a real device would give.
#[test]
fn the_self_test_passes_on_a_mock() {
    let Some(folder) = mock_or_skip("self-test") else { return };
    let cubins = folder.join("cubins");
    let (libraries, cubins) = (folder.to_str().unwrap(), cubins.to_str().unwrap());
    let written = TempDir::new().unwrap();
    let written = written.path().join("found.json");
    let out = written.to_str().unwrap();
    let small = ["gpu-selftest", "--no-speed", "--copy-bytes", "65536", "--cubins", cubins, "--out", out];
    let small = [&small[..], &["--gpu-libraries", libraries]].concat();
    let path = std::env::var("PATH").unwrap();
    let report: Value = serde_json::from_str(&bessemer(&small, &[("PATH", &path)]).ok().out).unwrap();
    assert_eq!(report, serde_json::from_slice::<Value>(&std::fs::read(&written).unwrap()).unwrap());
    assert_eq!(report["device"]["name"], "NVIDIA H200 (mock)");
    let steps = report["steps"].as_array().unwrap();
    let names: Vec<&str> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert!(steps.iter().all(|step| step["passed"] == true), "{report}");
    for name in [
        "device and compiler",
        "copies",
        "numbers: layer_norm",
        "numbers: column_sums",
        "numbers: adamw",
        "cuBLASLt: what it computes",
        "cuDNN: what it computes",
        "cuDNN: speed",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(report["cudnn_description"].as_str().is_some_and(|description| description.starts_with('{')), "{report}");
    let copies = &steps[names.iter().position(|name| *name == "copies").unwrap()]["figures"];
    assert!(copies.as_array().unwrap().iter().all(|figure| figure["value"].as_f64().unwrap() > 0.0), "{copies}");
}

/// The whole programme with small models: parts that are done are not done again, and those for which there is no time are named.
#[test]
fn the_programme_goes_on_where_it_ended() {
    let Some(mocks) = mock_or_skip("programme") else { return };
    let (folder, path) = (TempDir::new().unwrap(), std::env::var("PATH").unwrap());
    let (cache, out) = (mocks.join("cache"), folder.path().join("h200"));
    let run = |budget: &str| {
        let words = ["gpu-selftest", "--models", "small", "--gpu-libraries", mocks.to_str().unwrap()];
        let words =
            [&words[..], &["--budget", budget, "--python", "true", "--programme", out.to_str().unwrap()]].concat();
        bessemer(&words, &[("PATH", &path), ("XDG_CACHE_HOME", cache.to_str().unwrap())])
    };
    let first = run("100").ok();
    assert!(first.out.contains("left      resnet20, bert beside PyTorch, steps, self-test"), "{}", first.out);
    let second = run("1500").ok();
    assert!(
        second.err.contains("machine: done already") && !second.out.contains("left"),
        "{} {}",
        second.out,
        second.err
    );
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    for part in [
        "# What was found on NVIDIA H200 (mock)",
        "| resnet20-cifar, inference | 1 | fp32 |",
        "### bert-tiny, inference, batch 1, bf16",
        "| bessemer (fused)",
        "| resnet20-cifar | fp32 | 5 |",
        "steps passed.",
    ] {
        assert!(report.contains(part), "{part}:\n{report}");
    }
    let steps = report.lines().find(|line| line.starts_with("| resnet20-cifar | fp32 | 5 |")).unwrap();
    assert!(steps.ends_with(" yes |"), "{steps}");
}

#[test]
fn parts_that_the_programme_does_not_have_are_refused() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("h200");
    let words =
        ["gpu-selftest", "--models", "small", "--parts", "machine,nothing", "--programme", out.to_str().unwrap()];
    bessemer(&words, &[]).fails(2, &["no part `nothing`", "resnet20, bert-beside-pytorch, steps, self-test"]);
    assert!(!out.exists());
}

/// What is missing fails its step with one line; the report is there all the same.
#[test]
fn the_self_test_without_a_gpu_or_compiler_says_so() {
    let folder = TempDir::new().unwrap();
    let run = |named: &Path, environment: &[(&str, &str)]| {
        let ran = bessemer(&["gpu-selftest", "--gpu-libraries", named.to_str().unwrap()], environment);
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let problem = report["steps"][0]["problem"].as_str().unwrap_or_default().to_owned();
        (ran.fails(1, &["1 of 1 step failed"]), problem)
    };
    std::fs::write(folder.path().join("libcuda.so.1"), "broken").unwrap();
    let (_, problem) = run(folder.path(), &[]);
    assert!(problem.contains("libcuda.so.1 cannot be opened") && !problem.contains('\n'), "{problem}");
    let Some(mocks) = mock_or_skip("self-test without a compiler") else { return };
    std::fs::copy(mocks.join("libcuda.so.1"), folder.path().join("libcuda.so.1")).unwrap();
    let (_, problem) = run(folder.path(), &[]);
    assert!(
        problem.starts_with(
            "libnvrtc.so (compiler of kernels) was not found; looked in folders named by --gpu-libraries ("
        ),
        "{problem}"
    );
    let (_, problem) = run(mocks, &[("MOCK_DRIVER_VERSION", "12080")]);
    assert!(problem.contains("the driver runs CUDA up to 12.8"), "{problem}");
}
