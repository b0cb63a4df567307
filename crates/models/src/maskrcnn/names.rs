//! Names of published models.

use crate::tensorflow::{FileName, of_layer};
use crate::weights::{WeightNames, without_module};

/// Names of torchvision's `maskrcnn_resnet50_fpn`; those of its published file are older and read as well.
pub static NAMES: WeightNames = WeightNames {
    read: |name| {
        let name = without_module(name);
        of_published_file(name).unwrap_or_else(|| name.to_owned())
    },
    is_ignored: |canonical| canonical.ends_with("num_batches_tracked"),
    torchvision: str::to_owned,
    deep_learning_examples: str::to_owned,
};

/// The canonical name of a tensor that has another one in the published file.
fn of_published_file(name: &str) -> Option<String> {
    let (module, tensor) = name.rsplit_once('.')?;
    if module == "rpn.head.conv" {
        return Some(format!("{module}.0.0.{tensor}"));
    }
    if let Some(number) = module.strip_prefix("roi_heads.mask_head.mask_fcn") {
        return Some(format!("roi_heads.mask_head.{}.0.{tensor}", number.parse::<usize>().ok()?.checked_sub(1)?));
    }
    let (_, level) = module.strip_prefix("backbone.fpn.")?.split_once("_blocks.")?;
    level.parse::<usize>().ok()?;
    Some(format!("{module}.0.{tensor}"))
}

/// Blocks of each group of the backbone in NVIDIA's sample for TensorFlow 2.
const GROUPS: [usize; 4] = [3, 4, 6, 3];

/// Names of the backbone in NVIDIA's sample for TensorFlow 2, as those of a classifier. Blocks and their layers are numbered through
/// the network there.
pub(crate) fn of_tensorflow(_: &str, name: &str) -> Option<FileName> {
    let (scopes, variable) = name.strip_prefix("mrcnn/resnet50/")?.rsplit_once('/')?;
    let (block, layer) = scopes.rsplit_once('/')?;
    let is_conv = numbered(layer, "conv2d").is_some();
    if !is_conv && numbered(layer, "batch_normalization").is_none() {
        return None;
    }
    let kind = if is_conv { "conv" } else { "bn" };
    let Some((group, block)) = block.split_once('/') else {
        return if block == "conv2d_block" { of_layer(&format!("{kind}1"), variable) } else { None };
    };
    let group = numbered(group, "bottleneck_group")?;
    let (block, part) = block.split_once('/')?;
    let block = numbered(block, "bottleneck_block")?;
    let index = block.checked_sub(GROUPS.get(..group)?.iter().sum())?;
    if index >= *GROUPS.get(group)? {
        return None;
    }
    let module = if part == "shortcut" {
        format!("downsample.{}", usize::from(!is_conv))
    } else {
        let place = numbered(part, "conv2d_block")?.checked_sub(3 * block).filter(|place| (1..=3).contains(place))?;
        format!("{kind}{place}")
    };
    of_layer(&format!("layer{}.{index}.{module}", group + 1), variable)
}

/// The number that Keras puts behind the name of a layer; the first one has none.
fn numbered(name: &str, layer: &str) -> Option<usize> {
    match name.strip_prefix(layer)? {
        "" => Some(0),
        number => number.strip_prefix('_')?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow::{self, Layout};

    #[test]
    fn older_names_are_read() {
        for (canonical, name) in [
            ("backbone.fpn.inner_blocks.0.0.weight", "backbone.fpn.inner_blocks.0.weight"),
            ("backbone.fpn.layer_blocks.3.0.bias", "backbone.fpn.layer_blocks.3.bias"),
            ("rpn.head.conv.0.0.weight", "rpn.head.conv.weight"),
            ("roi_heads.mask_head.0.0.weight", "roi_heads.mask_head.mask_fcn1.weight"),
            ("roi_heads.mask_head.3.0.bias", "roi_heads.mask_head.mask_fcn4.bias"),
        ] {
            assert_eq!([NAMES.canonical(name), NAMES.canonical(canonical)], [canonical, canonical]);
        }
        for name in ["rpn.head.cls_logits.bias", "backbone.body.layer1.0.conv1.weight", "roi_heads.box_head.fc6.weight"]
        {
            assert_eq!(NAMES.canonical(name), name);
        }
        assert!(NAMES.ignores("backbone.body.bn1.num_batches_tracked") && !NAMES.ignores("backbone.body.bn1.bias"));
    }

    #[test]
    fn names_of_tensorflow() {
        for (name, expected, layout) in [
            ("conv2d_block/conv2d/kernel", "conv1.weight", Layout::Kernel),
            ("conv2d_block/batch_normalization/gamma", "bn1.weight", Layout::Torch),
            (
                "bottleneck_group/bottleneck_block/conv2d_block_1/conv2d_2/kernel",
                "layer1.0.conv1.weight",
                Layout::Kernel,
            ),
            (
                "bottleneck_group/bottleneck_block/shortcut/conv2d_1/kernel",
                "layer1.0.downsample.0.weight",
                Layout::Kernel,
            ),
            (
                "bottleneck_group_1/bottleneck_block_3/shortcut/batch_normalization_11/moving_mean",
                "layer2.0.downsample.1.running_mean",
                Layout::Torch,
            ),
            (
                "bottleneck_group_1/bottleneck_block_5/conv2d_block_18/batch_normalization_20/beta",
                "layer2.2.bn3.bias",
                Layout::Torch,
            ),
            (
                "bottleneck_group_3/bottleneck_block_15/conv2d_block_47/conv2d_51/kernel",
                "layer4.2.conv2.weight",
                Layout::Kernel,
            ),
        ] {
            let name = format!("mrcnn/resnet50/{name}");
            assert_eq!(tensorflow::read(&name), Some(FileName { canonical: expected.to_owned(), layout }), "{name}");
        }
        for unknown in [
            "mrcnn/fpn/l2/kernel",
            "mrcnn/resnet50/conv2d_block_1/conv2d/kernel",
            "mrcnn/resnet50/bottleneck_group_4/bottleneck_block_16/conv2d_block_49/conv2d_53/kernel",
            "mrcnn/resnet50/bottleneck_group/bottleneck_block_3/conv2d_block_10/conv2d_12/kernel",
            "mrcnn/resnet50/bottleneck_group/bottleneck_block_1/conv2d_block_3/conv2d_4/kernel",
        ] {
            assert_eq!(tensorflow::read(unknown), None, "{unknown}");
        }
    }
}
