//! Names of published detectors.

use crate::tensorflow::{FileName, Layout, of_layer};
use crate::weights::{WeightNames, without_module};

/// Names of the `effdet` package. Files of its training benches put `model.` before them.
pub static NAMES: WeightNames = WeightNames {
    read: |name| {
        let name = without_module(name);
        name.strip_prefix("model.").unwrap_or(name).to_owned()
    },
    is_ignored: |canonical| canonical.ends_with("num_batches_tracked") || canonical == "anchors.boxes",
    torchvision: None,
    deep_learning_examples: None,
};

/// The level of the first map of the pyramid.
const FIRST_LEVEL: usize = 3;

/// Names of pyramid and heads in NVIDIA's sample for TensorFlow 2.
pub(crate) fn of_tensorflow(_: &str, name: &str) -> Option<FileName> {
    let (layer, variable) = name.rsplit_once('/')?;
    if let Some(part) = layer.strip_prefix("resample_p6/") {
        return of_layer(&format!("fpn.resample.3.conv.{}", in_resampling(part)?), variable);
    }
    if let Some(rest) = layer.strip_prefix("fpn_cells/cell_") {
        let (cell, rest) = rest.split_once("/fnode")?;
        let (node, part) = rest.split_once('/').unwrap_or((rest, ""));
        let node = format!("fpn.cell.{}.fnode.{}", cell.parse::<usize>().ok()?, node.parse::<usize>().ok()?);
        return of_node(&node, part, variable);
    }
    let (net, layer) = layer.split_once('/')?;
    let layer = match net {
        "class_net" => layer.strip_prefix("class-")?,
        "box_net" => layer.strip_prefix("box-")?,
        _ => return None,
    };
    if layer == "predict" {
        return of_separable(&format!("{net}.predict"), variable);
    }
    match layer.split_once("-bn-") {
        Some((number, level)) => {
            let (number, level) =
                (number.parse::<usize>().ok()?, level.parse::<usize>().ok()?.checked_sub(FIRST_LEVEL)?);
            of_layer(&format!("{net}.bn_rep.{number}.{level}.bn"), variable)
        }
        None => of_separable(&format!("{net}.conv_rep.{}", layer.parse::<usize>().ok()?), variable),
    }
}

/// A variable of a node of the pyramid.
fn of_node(node: &str, part: &str, variable: &str) -> Option<FileName> {
    if part.is_empty() {
        let element = match variable.strip_prefix("WSM")? {
            "" => 0,
            number => number.strip_prefix('_')?.parse().ok()?,
        };
        return Some(FileName { canonical: format!("{node}.combine.edge_weights"), layout: Layout::Element(element) });
    }
    let (module, layer) = part.split_once('/')?;
    if let Some(rest) = module.strip_prefix("resample_") {
        // Its place among the inputs of the node, the input, and the number of maps before the node.
        let [_, input, _] =
            rest.splitn(3, '_').map(|number| number.parse::<usize>().ok()).collect::<Option<Vec<_>>>()?[..]
        else {
            return None;
        };
        return of_layer(&format!("{node}.combine.resample.{input}.conv.{}", in_resampling(layer)?), variable);
    }
    module.strip_prefix("op_after_combine")?.parse::<usize>().ok()?;
    match layer {
        "conv" => of_separable(&format!("{node}.after_combine.conv"), variable),
        "bn" => of_layer(&format!("{node}.after_combine.conv.bn"), variable),
        _ => None,
    }
}

fn in_resampling(layer: &str) -> Option<&'static str> {
    match layer {
        "conv2d" => Some("conv"),
        "bn" => Some("bn"),
        _ => None,
    }
}

/// A variable of a layer that is a depthwise convolution and one of 1x1 here.
fn of_separable(module: &str, variable: &str) -> Option<FileName> {
    let part = if variable == "depthwise_kernel" { "conv_dw" } else { "conv_pw" };
    of_layer(&format!("{module}.{part}"), variable)
}

/// Gives the tensors of a detector's backbone, which have a classifier's names in its checkpoint, those that they have here.
pub(crate) fn complete<'a>(names: impl Iterator<Item = &'a mut FileName>) {
    let mut names: Vec<&mut FileName> = names.collect();
    let is_of = |name: &FileName, parts: &[&str]| parts.iter().any(|part| name.canonical.starts_with(part));
    if names.iter().any(|name| is_of(name, &["class_net."])) {
        for name in names.iter_mut().filter(|name| !is_of(name, &["fpn.", "class_net.", "box_net."])) {
            name.canonical.insert_str(0, "backbone.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow;

    #[test]
    fn names_of_tensorflow() {
        let names = [
            ("resample_p6/conv2d/kernel", "fpn.resample.3.conv.conv.weight", Layout::Kernel),
            ("resample_p6/bn/moving_mean", "fpn.resample.3.conv.bn.running_mean", Layout::Torch),
            ("fpn_cells/cell_2/fnode4/WSM", "fpn.cell.2.fnode.4.combine.edge_weights", Layout::Element(0)),
            ("fpn_cells/cell_2/fnode4/WSM_2", "fpn.cell.2.fnode.4.combine.edge_weights", Layout::Element(2)),
            (
                "fpn_cells/cell_0/fnode5/resample_0_2_10/conv2d/bias",
                "fpn.cell.0.fnode.5.combine.resample.2.conv.conv.bias",
                Layout::Torch,
            ),
            (
                "fpn_cells/cell_0/fnode3/resample_0_0_8/bn/gamma",
                "fpn.cell.0.fnode.3.combine.resample.0.conv.bn.weight",
                Layout::Torch,
            ),
            (
                "fpn_cells/cell_1/fnode7/op_after_combine12/conv/depthwise_kernel",
                "fpn.cell.1.fnode.7.after_combine.conv.conv_dw.weight",
                Layout::DepthwiseKernel,
            ),
            (
                "fpn_cells/cell_1/fnode7/op_after_combine12/conv/pointwise_kernel",
                "fpn.cell.1.fnode.7.after_combine.conv.conv_pw.weight",
                Layout::Kernel,
            ),
            (
                "fpn_cells/cell_1/fnode7/op_after_combine12/bn/beta",
                "fpn.cell.1.fnode.7.after_combine.conv.bn.bias",
                Layout::Torch,
            ),
            ("class_net/class-1/bias", "class_net.conv_rep.1.conv_pw.bias", Layout::Torch),
            ("class_net/class-0-bn-6/moving_variance", "class_net.bn_rep.0.3.bn.running_var", Layout::Torch),
            ("box_net/box-predict/depthwise_kernel", "box_net.predict.conv_dw.weight", Layout::DepthwiseKernel),
            ("stem_conv2d/kernel", "backbone.conv_stem.weight", Layout::Kernel),
        ];
        let read = tensorflow::read_all(names.iter().map(|(name, ..)| *name));
        for ((name, expected, layout), read) in names.into_iter().zip(read) {
            assert_eq!(read, Some(FileName { canonical: expected.to_owned(), layout }), "{name}");
        }
        let unknown = [
            "resample_p6/dense/kernel",
            "fpn_cells/cell_0/fnode0/WSMX",
            "fpn_cells/cell_0/fnode0/resample_0/conv2d/kernel",
            "fpn_cells/cell_0/fnode0/op_after_combine/conv/bias",
            "class_net/class-0-bn-2/gamma",
            "class_net/box-0/bias",
        ];
        assert_eq!(tensorflow::read_all(unknown), [const { None }; 6]);
        let classifier = tensorflow::read_all(["stem_conv2d/kernel"]).remove(0).unwrap();
        assert_eq!(classifier.canonical, "conv_stem.weight", "it is no detector");
    }

    #[test]
    fn names_of_training_benches() {
        assert_eq!(
            NAMES.canonical("model.fpn.cell.0.fnode.0.combine.edge_weights"),
            "fpn.cell.0.fnode.0.combine.edge_weights"
        );
        assert!(NAMES.ignores("backbone.bn1.num_batches_tracked") && NAMES.ignores("anchors.boxes"));
        assert!(!NAMES.ignores("class_net.predict.conv_pw.bias"));
    }
}
