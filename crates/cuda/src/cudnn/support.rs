//! Which graphs cuDNN supports on a device that need not be there: what it offers for each, and what becomes a plan.

use super::{Convolution, Cudnn, Fusion, Geometry, Graph, Heuristics, Pass};
use crate::error::GpuError;
use bessemer_ir::DType;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::sync::Arc;

/// One graph of one shape in one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// What the graph computes, such as [`Fusion::name`].
    pub graph: String,
    /// Sizes of the graph, as printed by [`Convolution`].
    pub shape: String,
    /// Element type of the tensors, such as `bf16`.
    pub ty: String,
    /// Configurations of engines that the heuristics offer.
    pub offered: usize,
    /// Of these, how many were tried, best first.
    pub tried: usize,
    /// Of those that were tried, how many became plans.
    pub planned: usize,
    /// Of the plans, how many need no compiler at run time.
    pub precompiled: usize,
    /// cuDNN's number of the engine of the first plan; `None` if there is none.
    pub engine: Option<i64>,
    /// Bytes of workspace of the first plan; `None` if there is none.
    pub workspace_bytes: Option<usize>,
    /// Why there is no plan.
    pub refusal: Option<String>,
}

/// What was asked, of which cuDNN, for which device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What this is not: a measurement.
    pub note: String,
    /// Day on which cuDNN was asked, as `YYYY-MM-DD`.
    pub date: String,
    /// The command that writes the table.
    pub command: String,
    /// Such as `91900` for 9.19.0.
    pub cudnn_version: usize,
    /// Name of the described device.
    pub device: String,
    /// The description of the device that cuDNN was given, as JSON.
    pub description: String,
    /// The answers, one for each graph, shape and type.
    pub rows: Vec<Row>,
}

/// Said in every table.
pub const DEVICELESS: &str = "Deviceless: cuDNN was asked with a written description of the device. That a plan \
                              is made says that cuDNN means to support the graph, not that it runs, is right, or is fast.";

/// Types that convolutions are asked for.
pub const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// Convolutions of ResNet-50 with `batch` images: each kind of kernel and stride, some at several sizes.
pub fn resnet50(batch: usize) -> Vec<Convolution> {
    let image = |side, channels| [batch, side, side, channels];
    let stem = Geometry { stride: [2; 2], padding: [3; 2], dilation: [1; 2] };
    vec![
        Convolution { input: image(224, 4), filters: 64, kernel: [7; 2], geometry: stem, groups: 1 },
        Convolution::same(image(56, 256), 64, 1, 1),
        Convolution::same(image(56, 64), 64, 3, 1),
        Convolution::same(image(56, 64), 256, 1, 1),
        Convolution::same(image(56, 128), 128, 3, 2),
        Convolution::same(image(56, 256), 512, 1, 2),
        Convolution::same(image(14, 256), 256, 3, 1),
    ]
}

/// Depthwise convolutions of EfficientNet-B0 and those of a feature pyramid, with `batch` images.
pub fn detection(batch: usize) -> Vec<Convolution> {
    vec![
        Convolution::depthwise([batch, 256, 256, 96], 3, 2),
        Convolution::depthwise([batch, 64, 64, 240], 5, 1),
        Convolution::same([batch, 64, 64, 256], 256, 3, 1),
    ]
}

/// Batch norms of ResNet-50 with `batch` images: `[N, H, W, C]`.
pub fn norms(batch: usize) -> [[usize; 4]; 3] {
    [(112, 64), (28, 128), (7, 2048)].map(|(side, channels)| [batch, side, side, channels])
}

/// Every fusion that has a meaning for the convolution: a first one has no gradient of its input.
pub fn fusions(of: &Convolution) -> Vec<Fusion> {
    let first = of.input[3] == 4;
    Fusion::ALL.into_iter().filter(|fusion| !first || fusion.pass() != Pass::DataGradient).collect()
}

impl Row {
    /// Asks for a convolution with what is fused with it, and tries its first `most` configurations.
    pub fn ask(library: &Arc<Cudnn>, of: &Convolution, fusion: Fusion, ty: DType, most: usize) -> Row {
        Row::ask_graph(library, &of.graph(fusion, ty), [fusion.name(), &of.to_string(), &ty.to_string()], most)
    }

    /// Asks for any graph, which has these words for what it does, its shape and its type.
    pub fn ask_graph(library: &Arc<Cudnn>, graph: &Graph, [name, shape, ty]: [&str; 3], most: usize) -> Row {
        let mut row = Row {
            graph: name.to_owned(),
            shape: shape.to_owned(),
            ty: ty.to_owned(),
            offered: 0,
            tried: 0,
            planned: 0,
            precompiled: 0,
            engine: None,
            workspace_bytes: None,
            refusal: None,
        };
        match library.planner(graph, Heuristics::Best) {
            Err(error) => row.refusal = Some(in_words(&error)),
            Ok(planner) => {
                row.offered = planner.len();
                row.tried = planner.len().min(most);
                for number in 0..row.tried {
                    match planner.plan(number) {
                        Err(error) => row.refusal = row.refusal.or(Some(in_words(&error))),
                        Ok(plan) => {
                            row.planned += 1;
                            row.precompiled += usize::from(!plan.engine.compiles);
                            row.engine = row.engine.or(Some(plan.engine.number));
                            row.workspace_bytes = row.workspace_bytes.or(Some(plan.workspace));
                        }
                    }
                }
            }
        }
        if row.planned > 0 {
            row.refusal = None;
        }
        row
    }
}

/// The name of the code alone: what follows differs between versions.
fn in_words(error: &GpuError) -> String {
    match error {
        GpuError::Call { meaning, .. } => {
            meaning.split(|c: char| c.is_whitespace() || c == ',').next().unwrap_or_default().to_owned()
        }
        other => other.to_string(),
    }
}

impl Table {
    /// As a page of Markdown.
    pub fn markdown(&self) -> String {
        let mut page = format!("# What cuDNN {} supports on {}\n\n", dotted(self.cudnn_version), self.device);
        let _ = writeln!(page, "{} No figure here was measured on a GPU.\n", self.note);
        let _ = writeln!(page, "Made on {} by\n\n    {}\n", self.date, self.command);
        page += &self.summary();
        page += "\n## Every graph\n\nOffered: configurations of engines that the heuristics name. Planned: those that became plans, of the \
                 first ones that were tried; in brackets those that need no compiler at run time. Workspace: of the \
                 first plan.\n\n";
        page += "| graph | shape | type | offered | planned / tried | engine | workspace, MB |\n";
        page += "|---|---|---|--:|--:|--:|--:|\n";
        for row in &self.rows {
            let (engine, workspace) = match (row.engine, row.workspace_bytes) {
                (Some(engine), Some(bytes)) => (engine.to_string(), format!("{:.1}", bytes as f64 / 1e6)),
                _ => (row.refusal.clone().unwrap_or_else(|| "no engine".to_owned()), String::new()),
            };
            let planned = format!("{} / {} ({})", row.planned, row.tried, row.precompiled);
            let Row { graph, shape, ty, offered, .. } = row;
            let _ = writeln!(page, "| {graph} | {shape} | {ty} | {offered} | {planned} | {engine} | {workspace} |");
        }
        page
    }
}

impl Table {
    /// For how many shapes each graph has a plan, and one that needs no compiler at run time.
    fn summary(&self) -> String {
        let mut text = String::from("## Shapes with a plan, of all that were asked for\n\n");
        text += "In brackets: with a plan that needs no compiler at run time.\n\n| graph |";
        let graphs = distinct(self.rows.iter().map(|row| &row.graph));
        let types = distinct(self.rows.iter().map(|row| &row.ty));
        for ty in &types {
            let _ = write!(text, " {ty} |");
        }
        text += &format!("\n|---|{}\n", "--:|".repeat(types.len()));
        for graph in graphs {
            let _ = write!(text, "| {graph} |");
            for ty in &types {
                let rows = || self.rows.iter().filter(|row| row.graph == *graph && row.ty == **ty);
                let planned = rows().filter(|row| row.planned > 0).count();
                let precompiled = rows().filter(|row| row.precompiled > 0).count();
                let _ = write!(text, " {planned} of {} ({precompiled}) |", rows().count());
            }
            text += "\n";
        }
        text
    }
}

/// Each text once, in the order of its first.
fn distinct<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cudnn::Support;

    #[test]
    fn a_page_says_what_is_supported_and_that_nothing_was_measured() {
        let row = |ty: &str, planned, refusal: Option<&str>| Row {
            graph: "forward".to_owned(),
            shape: "1x8x8x16 3x3 to 16".to_owned(),
            ty: ty.to_owned(),
            offered: 3,
            tried: 2,
            planned,
            precompiled: planned,
            engine: (planned > 0).then_some(7),
            workspace_bytes: (planned > 0).then_some(1_500_000),
            refusal: refusal.map(str::to_owned),
        };
        let table = Table {
            note: DEVICELESS.to_owned(),
            date: "today".to_owned(),
            command: "ask".to_owned(),
            cudnn_version: 91_900,
            device: "an H200".to_owned(),
            description: "{}".to_owned(),
            rows: vec![row("f16", 2, None), row("bf16", 0, Some("CUDNN_STATUS_NOT_SUPPORTED"))],
        };
        let page = table.markdown();
        assert!(page.starts_with("# What cuDNN 9.19.0 supports on an H200\n\nDeviceless: "));
        for line in [
            "| graph | f16 | bf16 |",
            "| forward | 1 of 1 (1) | 0 of 1 (0) |",
            "| forward | 1x8x8x16 3x3 to 16 | f16 | 3 | 2 / 2 (2) | 7 | 1.5 |",
            "| forward | 1x8x8x16 3x3 to 16 | bf16 | 3 | 0 / 2 (0) | CUDNN_STATUS_NOT_SUPPORTED |  |",
        ] {
            assert!(page.lines().any(|other| other == line), "{line}\n{page}");
        }
        assert!(page.contains("No figure here was measured on a GPU.") && page.contains("\n    ask\n"));
    }

    /// What is known without a device is what the tables of both devices say of every graph of every shape in every type.
    #[test]
    fn what_is_known_of_engines_is_what_the_tables_say() {
        let shapes = [resnet50(256), detection(16)].concat();
        for device in ["h200", "a100"] {
            let file = format!("{}/../../docs/reports/gpu/cudnn-support-{device}.json", env!("CARGO_MANIFEST_DIR"));
            let table: Table = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            for row in &table.rows {
                let of = shapes.iter().find(|of| of.to_string() == row.shape).unwrap();
                let fusion = Fusion::ALL.into_iter().find(|fusion| fusion.name() == row.graph).unwrap();
                let ty = TYPES.into_iter().find(|ty| ty.to_string() == row.ty).unwrap();
                let is_right = match fusion.support(of, ty) {
                    // Some plain weight gradients in bf16 need a compiler; they run by any engine.
                    Support::Precompiled if matches!(fusion, Fusion::Plain(_)) => row.planned > 0,
                    Support::Precompiled => row.precompiled > 0,
                    Support::Missing => row.planned == 0,
                    Support::Uncertain => true,
                };
                assert!(is_right, "{device}: {row:?}");
            }
        }
    }

    #[test]
    fn a_first_convolution_has_no_gradient_of_its_input() {
        let first = &resnet50(1)[0];
        assert_eq!(first.output(), [1, 112, 112, 64]);
        assert!(fusions(first).iter().all(|fusion| fusion.pass() != Pass::DataGradient));
        assert_eq!(fusions(&resnet50(1)[1]).len(), Fusion::ALL.len());
        let seconds = detection(2)[0];
        assert_eq!((seconds.output(), seconds.weights()), ([2, 128, 128, 96], [96, 3, 3, 1]));
    }
}
