//! What the generated kernels take of a multiprocessor. Needs NVIDIA's compiler, which `scripts/fetch_nvrtc.sh` fetches,
//! and no GPU.

mod common;

use bessemer_cuda::kgen::Kernel;
use bessemer_cuda::loader::{Libraries, Places, Wanted};
use bessemer_cuda::nvrtc::{Nvrtc, resources};
use bessemer_cuda::selftest::cases::small_cases;
use std::io::Write;

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];
/// Registers with which two blocks of 512 threads fit on a multiprocessor.
const MOST_REGISTERS: u32 = 64;

#[test]
fn all_kernels_compile_without_spills() {
    let libraries = Libraries::find(Places::of_process(&[]));
    if libraries.get(Wanted::Nvrtc).is_none() {
        return common::skip(
            "resources of kernels",
            "there is no libnvrtc.so; crates/cuda/scripts/fetch_nvrtc.sh gets it",
        );
    }
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let all: Vec<Kernel> = small_cases()
        .unwrap()
        .into_iter()
        .flat_map(|case| case.work.launches.into_iter().map(|launch| launch.kernel))
        .collect();
    let mut report = format!("kernels by NVRTC {}.{}:\n", nvrtc.version().0, nvrtc.version().1);
    let mut too_much = Vec::new();
    for kernel in &all {
        for architecture in ARCHITECTURES {
            let compiled = nvrtc.compile(&kernel.name, &kernel.text, architecture).unwrap();
            assert!(compiled.cubin.starts_with(b"\x7fELF"), "{}", kernel.name);
            let used = resources(&compiled.log).unwrap_or_else(|| panic!("{}: {}", kernel.name, compiled.log));
            let line = format!(
                "{:<24} {architecture:<7} {:>3} registers, {} bytes spilled, {} bytes shared",
                kernel.name, used.registers, used.spill_bytes, used.shared_bytes
            );
            report += &format!("  {line}\n");
            // The kernel that has every function is no measure of registers.
            if used.spill_bytes > 0 || (used.registers > MOST_REGISTERS && kernel.name != "every_function") {
                too_much.push(line);
            }
        }
    }
    let _ = std::io::stderr().write_all(report.as_bytes());
    assert!(too_much.is_empty(), "{too_much:#?}");
}

#[test]
fn errors_in_the_text_are_told_with_their_lines() {
    let libraries = Libraries::find(Places::of_process(&[]));
    let Some(_) = libraries.get(Wanted::Nvrtc) else {
        return common::skip("errors of the compiler", "there is no libnvrtc.so");
    };
    let nvrtc = Nvrtc::open(&libraries).unwrap();
    let reported = nvrtc.compile("broken", "__global__ void f() { nonsense; }", "sm_80").unwrap_err().to_string();
    assert!(reported.contains("broken.cu(1): error: identifier \"nonsense\" is undefined"), "{reported}");
    let reported = nvrtc.compile("fine", "__global__ void f() {}", "sm_1").unwrap_err().to_string();
    assert!(reported.contains("invalid value for --gpu-architecture"), "{reported}");
}
