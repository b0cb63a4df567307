//! Times of training steps on a GPU that this program was designed for: estimates, made before anything was measured, from the peak rates of one
//! H200 and what published results reach of them.

use crate::explain::Request;
use crate::workload::Mode;
use bessemer_ir::DType;
use serde::Serialize;

/// What a training step in 16 bits is to take on an H200.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuTarget {
    /// Samples of the step.
    pub batch_size: usize,
    /// The sum of the budgets of its kinds of kernels.
    pub milliseconds: f64,
    /// Samples per second that are the least to be reached.
    pub least: f64,
    /// Samples per second that are aimed at.
    pub aim: f64,
}

impl GpuTarget {
    /// Samples per second within the budget.
    pub fn throughput(&self) -> f64 {
        self.batch_size as f64 / self.milliseconds * 1e3
    }
}

/// By model, and of text by tokens of a sequence.
const TARGETS: [(&str, Option<usize>, GpuTarget); 7] = [
    ("resnet50", None, GpuTarget { batch_size: 256, milliseconds: 28.9, least: 7200.0, aim: 8500.0 }),
    ("bert-base", Some(128), GpuTarget { batch_size: 256, milliseconds: 37.9, least: 6000.0, aim: 6800.0 }),
    ("bert-base", Some(512), GpuTarget { batch_size: 64, milliseconds: 48.0, least: 1200.0, aim: 1450.0 }),
    ("electra-base", Some(128), GpuTarget { batch_size: 256, milliseconds: 43.0, least: 4500.0, aim: 6000.0 }),
    ("electra-base", Some(512), GpuTarget { batch_size: 64, milliseconds: 57.0, least: 900.0, aim: 1200.0 }),
    ("efficientdet-d0", None, GpuTarget { batch_size: 128, milliseconds: 85.0, least: 1000.0, aim: 1600.0 }),
    ("mask-rcnn", None, GpuTarget { batch_size: 12, milliseconds: 78.0, least: 100.0, aim: 170.0 }),
];

/// `None` for other models, sizes, precisions and GPUs, and for inference.
pub(crate) fn target_of(request: &Request) -> Option<GpuTarget> {
    let is_half = matches!(request.compile.precision, DType::F16 | DType::Bf16);
    let is_meant =
        request.mode == Mode::Train && is_half && request.sheet.as_ref().is_some_and(|sheet| sheet.name == "h200");
    let fits = |model: &str, tokens: Option<usize>| {
        model == request.model && tokens.is_none_or(|tokens| tokens == request.settings.sequence_length)
    };
    TARGETS.iter().find(|(model, tokens, _)| is_meant && fits(model, *tokens)).map(|(_, _, target)| *target)
}
