//! Names of published models.

use super::BACKBONE;
use super::config::BOX_SIZE;
use crate::tensorflow::{FileName, Layout, of_layer};
use crate::weights::{WeightNames, without_module};

/// Names of torchvision's `maskrcnn_resnet50_fpn`; those of its published file are older and read as well.
pub static NAMES: WeightNames = WeightNames {
    read: |name| {
        let name = without_module(name);
        of_published_file(name).unwrap_or_else(|| name.to_owned())
    },
    is_ignored: |canonical| canonical.ends_with("num_batches_tracked"),
    torchvision: Some(str::to_owned),
    deep_learning_examples: None,
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

/// Names in NVIDIA's sample for TensorFlow 2.
pub(crate) fn of_tensorflow(_: &str, name: &str) -> Option<FileName> {
    let (part, rest) = name.strip_prefix("mrcnn/")?.split_once('/')?;
    let (layer, variable) = rest.rsplit_once('/')?;
    let module = match (part, layer) {
        ("resnet50", _) => return of_backbone(layer, variable),
        ("fpn", _) => {
            let (kind, level) = match layer.strip_prefix("post_hoc_d") {
                Some(level) => ("layer_blocks", level),
                None => ("inner_blocks", layer.strip_prefix('l')?),
            };
            let block = level.parse::<usize>().ok()?.checked_sub(FIRST_LEVEL).filter(|block| *block < GROUPS.len())?;
            format!("backbone.fpn.{kind}.{block}.0")
        }
        ("mask_head", _) if layer.starts_with(MASK_CONV) => {
            format!("roi_heads.mask_head.{}.0", layer.strip_prefix(MASK_CONV)?.parse::<usize>().ok()?)
        }
        _ => HEADS.iter().find(|(of, name, _)| (*of, *name) == (part, layer))?.2.to_owned(),
    };
    let read = of_layer(&module, variable)?;
    let is_of_image = module == FIRST_OF_BOXES && read.layout == Layout::Kernel;
    Some(FileName { layout: if is_of_image { Layout::KernelOfImage([BOX_SIZE; 2]) } else { read.layout }, ..read })
}

/// The level of the first map of the pyramid.
const FIRST_LEVEL: usize = 2;
const MASK_CONV: &str = "mask-conv-l";
/// The layer that reads features of regions, whose inputs are an image.
const FIRST_OF_BOXES: &str = "roi_heads.box_head.fc6";
/// Layers of heads: what they are part of, their names there, and their modules here.
const HEADS: [(&str, &str, &str); 9] = [
    ("rpn_head", "rpn", "rpn.head.conv.0.0"),
    ("rpn_head", "rpn-class", "rpn.head.cls_logits"),
    ("rpn_head", "rpn-box", "rpn.head.bbox_pred"),
    ("box_head", "fc6", FIRST_OF_BOXES),
    ("box_head", "fc7", "roi_heads.box_head.fc7"),
    ("box_head", "class-predict", "roi_heads.box_predictor.cls_score"),
    ("box_head", "box-predict", "roi_heads.box_predictor.bbox_pred"),
    ("mask_head", "conv5-mask", "roi_heads.mask_predictor.conv5_mask"),
    ("mask_head", "mask_fcn_logits", "roi_heads.mask_predictor.mask_fcn_logits"),
];

/// Names of the backbone. Blocks and their layers are numbered through the network there.
fn of_backbone(scopes: &str, variable: &str) -> Option<FileName> {
    let (block, layer) = scopes.rsplit_once('/')?;
    let is_conv = numbered(layer, "conv2d").is_some();
    if !is_conv && numbered(layer, "batch_normalization").is_none() {
        return None;
    }
    let kind = if is_conv { "conv" } else { "bn" };
    let Some((group, block)) = block.split_once('/') else {
        return if block == "conv2d_block" { of_layer(&format!("{BACKBONE}.{kind}1"), variable) } else { None };
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
    of_layer(&format!("{BACKBONE}.layer{}.{index}.{module}", group + 1), variable)
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
            ("conv2d_block/conv2d/kernel", "backbone.body.conv1.weight", Layout::Kernel),
            ("conv2d_block/batch_normalization/gamma", "backbone.body.bn1.weight", Layout::Torch),
            (
                "bottleneck_group/bottleneck_block/conv2d_block_1/conv2d_2/kernel",
                "backbone.body.layer1.0.conv1.weight",
                Layout::Kernel,
            ),
            (
                "bottleneck_group/bottleneck_block/shortcut/conv2d_1/kernel",
                "backbone.body.layer1.0.downsample.0.weight",
                Layout::Kernel,
            ),
            (
                "bottleneck_group_1/bottleneck_block_3/shortcut/batch_normalization_11/moving_mean",
                "backbone.body.layer2.0.downsample.1.running_mean",
                Layout::Torch,
            ),
            (
                "bottleneck_group_1/bottleneck_block_5/conv2d_block_18/batch_normalization_20/beta",
                "backbone.body.layer2.2.bn3.bias",
                Layout::Torch,
            ),
            (
                "bottleneck_group_3/bottleneck_block_15/conv2d_block_47/conv2d_51/kernel",
                "backbone.body.layer4.2.conv2.weight",
                Layout::Kernel,
            ),
        ] {
            let name = format!("mrcnn/resnet50/{name}");
            assert_eq!(tensorflow::read(&name), Some(FileName { canonical: expected.to_owned(), layout }), "{name}");
        }
        for (name, expected, layout) in [
            ("fpn/l2/kernel", "backbone.fpn.inner_blocks.0.0.weight", Layout::Kernel),
            ("fpn/l5/bias", "backbone.fpn.inner_blocks.3.0.bias", Layout::Torch),
            ("fpn/post_hoc_d4/kernel", "backbone.fpn.layer_blocks.2.0.weight", Layout::Kernel),
            ("rpn_head/rpn/kernel", "rpn.head.conv.0.0.weight", Layout::Kernel),
            ("rpn_head/rpn-box/bias", "rpn.head.bbox_pred.bias", Layout::Torch),
            ("box_head/fc6/kernel", "roi_heads.box_head.fc6.weight", Layout::KernelOfImage([7, 7])),
            ("box_head/fc6/bias", "roi_heads.box_head.fc6.bias", Layout::Torch),
            ("box_head/fc7/kernel", "roi_heads.box_head.fc7.weight", Layout::Kernel),
            ("box_head/class-predict/kernel", "roi_heads.box_predictor.cls_score.weight", Layout::Kernel),
            ("mask_head/mask-conv-l3/kernel", "roi_heads.mask_head.3.0.weight", Layout::Kernel),
            ("mask_head/conv5-mask/kernel", "roi_heads.mask_predictor.conv5_mask.weight", Layout::Kernel),
            ("mask_head/mask_fcn_logits/bias", "roi_heads.mask_predictor.mask_fcn_logits.bias", Layout::Torch),
        ] {
            let name = format!("mrcnn/{name}");
            assert_eq!(tensorflow::read(&name), Some(FileName { canonical: expected.to_owned(), layout }), "{name}");
        }
        for unknown in [
            "mrcnn/fpn/l1/kernel",
            "mrcnn/fpn/post_hoc_d6/kernel",
            "mrcnn/rpn_head/fc6/kernel",
            "mrcnn/box_head/fc8/kernel",
            "mrcnn/mask_head/mask-conv-l/kernel",
            "mrcnn/resnet50/conv2d_block_1/conv2d/kernel",
            "mrcnn/resnet50/bottleneck_group_4/bottleneck_block_16/conv2d_block_49/conv2d_53/kernel",
            "mrcnn/resnet50/bottleneck_group/bottleneck_block_3/conv2d_block_10/conv2d_12/kernel",
            "mrcnn/resnet50/bottleneck_group/bottleneck_block_1/conv2d_block_3/conv2d_4/kernel",
        ] {
            assert_eq!(tensorflow::read(unknown), None, "{unknown}");
        }
    }
}
