//! Asks cuDNN, without a GPU, which graphs it supports on a device, and writes the answers:
//!
//!     cudnn_support h200|a100 LIBRARIES OUT DATE
//!
//! LIBRARIES are folders with cuDNN and NVRTC, separated by `:`; a first one may hold a mock of the driver, without which
//! engines that compile are refused. OUT is a folder. `scripts/cudnn_support.sh` calls this.

use bessemer_cuda::cudnn::support::{DEVICELESS, Row, TYPES, Table, detection, fusions, norms, resnet50};
use bessemer_cuda::cudnn::{BatchNorm, Cudnn, DeviceDescription};
use bessemer_cuda::loader::{Libraries, Places};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// Configurations of each graph that are tried: compiling takes time.
const TRIED: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folders, out, date] = arguments.as_slice() else {
        return Err("usage: cudnn_support h200|a100 LIBRARIES OUT DATE".into());
    };
    let (device, description) = match name.as_str() {
        "h200" => ("an H200", DeviceDescription::h200()),
        "a100" => ("an A100", DeviceDescription::a100()),
        other => return Err(format!("'{other}' is neither h200 nor a100").into()),
    };
    let named = std::env::split_paths(folders).collect();
    let libraries = Libraries::find(Places { named, ..Places::default() });
    let library = Cudnn::without_device(&libraries, &description)?;
    let write = |part: &str, rows| {
        let table = Table {
            note: DEVICELESS.to_owned(),
            date: date.clone(),
            command: format!("crates/cuda/scripts/cudnn_support.sh FOLDER {name} docs/reports/gpu"),
            cudnn_version: library.version(),
            device: device.to_owned(),
            description: description.json.clone(),
            rows,
        };
        let file = |ending: &str| Path::new(out).join(format!("cudnn-{part}-{name}.{ending}"));
        std::fs::write(file("json"), serde_json::to_string_pretty(&table)? + "\n")?;
        Ok::<(), Box<dyn Error>>(std::fs::write(file("md"), table.markdown())?)
    };
    write("norms", norm_rows(&library))?;
    write("support", convolution_rows(&library))
}

fn norm_rows(library: &Arc<Cudnn>) -> Vec<Row> {
    let mut rows = Vec::new();
    for [n, h, w, c] in norms(256) {
        for norm in BatchNorm::ALL {
            rows.extend(TYPES.map(|ty| {
                let words = [norm.name(), &format!("{n}x{h}x{w}x{c}"), &ty.to_string()];
                Row::ask_graph(library, &norm.graph([n, h, w, c], ty), words, TRIED)
            }));
        }
    }
    rows
}

fn convolution_rows(library: &Arc<Cudnn>) -> Vec<Row> {
    let mut rows = Vec::new();
    for of in resnet50(256).iter().chain(&detection(16)) {
        for fusion in fusions(of) {
            rows.extend(TYPES.map(|ty| Row::ask(library, of, fusion, ty, TRIED)));
        }
    }
    rows
}
