//! Names of published classifiers.

use crate::tensorflow::{FileName, of_layer};
use crate::weights::{WeightNames, without_module};

/// Names of ResNets: those used here are timm's and torchvision's, and NVIDIA's PyTorch recipes have others (`layers.0` for
/// `layer1`). Those of EfficientNets are read as well.
pub static NAMES: WeightNames = WeightNames {
    read,
    is_ignored,
    torchvision: Some(str::to_owned),
    deep_learning_examples: Some(deep_learning_examples),
};

/// Names of EfficientNets: those used here are timm's, and torchvision has others (`features.1.0.block.0.0` for
/// `blocks.0.0.conv_dw`). Those of ResNets are read as well.
pub static EFFICIENTNET_NAMES: WeightNames =
    WeightNames { read, is_ignored, torchvision: Some(torchvision), deep_learning_examples: None };

/// Modules of EfficientNets by timm's and by torchvision's names, but for those of blocks.
const MODULES: [(&str, &str); 5] = [
    ("conv_stem", "features.0.0"),
    ("bn1", "features.0.1"),
    ("conv_head", "features.8.0"),
    ("bn2", "features.8.1"),
    ("classifier", "classifier.1"),
];

/// Modules of a block of the first stage, which does not expand.
const FIRST_STAGE: [(&str, &str); 6] = [
    ("conv_dw", "0.0"),
    ("bn1", "0.1"),
    ("se.conv_reduce", "1.fc1"),
    ("se.conv_expand", "1.fc2"),
    ("conv_pw", "2.0"),
    ("bn2", "2.1"),
];

/// Modules of a block of another stage.
const OTHER_STAGES: [(&str, &str); 8] = [
    ("conv_pw", "0.0"),
    ("bn1", "0.1"),
    ("conv_dw", "1.0"),
    ("bn2", "1.1"),
    ("se.conv_reduce", "2.fc1"),
    ("se.conv_expand", "2.fc2"),
    ("conv_pwl", "3.0"),
    ("bn3", "3.1"),
];

/// Layers of EfficientNets in Keras, but for those of blocks.
const KERAS_LAYERS: [(&str, &str); 5] = [
    ("stem_conv2d", "conv_stem"),
    ("stem_bn", "bn1"),
    ("top_conv2d", "conv_head"),
    ("top_bn", "bn2"),
    ("logits", "classifier"),
];

/// Layers of a block in Keras, and their modules in the first stage, which does not expand, and in others.
const KERAS_BLOCK: [(&str, [Option<&str>; 2]); 8] = [
    ("expand_conv2d", [None, Some("conv_pw")]),
    ("expand_bn", [None, Some("bn1")]),
    ("depthwise_conv2d", [Some("conv_dw"); 2]),
    ("depthwise_bn", [Some("bn1"), Some("bn2")]),
    ("se_reduce_conv2d", [Some("se.conv_reduce"); 2]),
    ("se_expand_conv2d", [Some("se.conv_expand"); 2]),
    ("project_conv2d", [Some("conv_pw"), Some("conv_pwl")]),
    ("project_bn", [Some("bn2"), Some("bn3")]),
];

fn read(name: &str) -> String {
    let name = without_module(name);
    let renamed = of_deep_learning_examples(name).or_else(|| of_torchvision(name));
    renamed.unwrap_or_else(|| name.to_string())
}

/// Names of the ResNets in NVIDIA's sample for TensorFlow 1, and of EfficientNets in Keras.
pub(crate) fn of_tensorflow(_: &str, name: &str) -> Option<FileName> {
    let (layer, variable) = name.rsplit_once('/')?;
    let module = match layer.strip_prefix("resnet50/") {
        Some(layer) => resnet_module(layer)?,
        None => efficientnet_module(layer)?,
    };
    of_layer(&module, variable)
}

fn resnet_module(layer: &str) -> Option<String> {
    match layer {
        "conv2d/conv2d" => return Some("conv1".to_owned()),
        "conv2d/BatchNorm" => return Some("bn1".to_owned()),
        "output/dense" => return Some("fc".to_owned()),
        _ => {}
    }
    let (block, part) = layer.strip_prefix("btlnck_block_")?.split_once('/')?;
    let (group, block) = block.split_once('_')?;
    let (group, block) = (group.parse::<usize>().ok()?.checked_add(1)?, block.parse::<usize>().ok()?);
    let module = match part {
        "shortcut/conv2d/conv2d" => "downsample.0".to_owned(),
        "shortcut/conv2d/BatchNorm" => "downsample.1".to_owned(),
        part => {
            let (number, kind) = part.strip_prefix("bottleneck_")?.split_once('/')?;
            let kind = match kind {
                "conv2d" => "conv",
                "BatchNorm" => "bn",
                _ => return None,
            };
            format!("{kind}{}", number.parse::<usize>().ok()?)
        }
    };
    Some(format!("layer{group}.{block}.{module}"))
}

fn efficientnet_module(layer: &str) -> Option<String> {
    if let Some((_, module)) = KERAS_LAYERS.iter().find(|(keras, _)| *keras == layer) {
        return Some((*module).to_owned());
    }
    let (stage, rest) = layer.strip_prefix("stack_")?.split_once('/')?;
    let (block, part) = rest.strip_prefix("block_")?.split_once('/')?;
    let (stage, block) = (stage.parse::<usize>().ok()?, block.parse::<usize>().ok()?);
    let (_, modules) = KERAS_BLOCK.iter().find(|(keras, _)| *keras == part)?;
    Some(format!("blocks.{stage}.{block}.{}", modules[stage.min(1)]?))
}

/// PyTorch's count of batches.
fn is_ignored(canonical: &str) -> bool {
    canonical == "num_batches_tracked" || canonical.ends_with(".num_batches_tracked")
}

/// The canonical name of a tensor that has another one in torchvision.
fn of_torchvision(name: &str) -> Option<String> {
    let (module, tensor) = name.rsplit_once('.')?;
    if let Some((canonical, _)) = MODULES.iter().find(|(_, torchvision)| *torchvision == module) {
        return Some(format!("{canonical}.{tensor}"));
    }
    let (number, rest) = module.strip_prefix("features.")?.split_once('.')?;
    let (index, part) = rest.split_once(".block.")?;
    let stage = number.parse::<usize>().ok()?.checked_sub(1)?;
    let (canonical, _) = block_modules(stage).iter().find(|(_, torchvision)| *torchvision == part)?;
    Some(format!("blocks.{stage}.{index}.{canonical}.{tensor}"))
}

/// torchvision's name of a tensor of an EfficientNet.
fn torchvision(canonical: &str) -> String {
    renamed_for_torchvision(canonical).unwrap_or_else(|| canonical.to_owned())
}

fn renamed_for_torchvision(canonical: &str) -> Option<String> {
    let (module, tensor) = canonical.rsplit_once('.')?;
    if let Some((_, name)) = MODULES.iter().find(|(canonical, _)| *canonical == module) {
        return Some(format!("{name}.{tensor}"));
    }
    let (stage, rest) = module.strip_prefix("blocks.")?.split_once('.')?;
    let (index, part) = rest.split_once('.')?;
    let stage = stage.parse::<usize>().ok()?;
    let (_, name) = block_modules(stage).iter().find(|(canonical, _)| *canonical == part)?;
    Some(format!("features.{}.{index}.block.{name}.{tensor}", stage.checked_add(1)?))
}

fn block_modules(stage: usize) -> &'static [(&'static str, &'static str)] {
    if stage == 0 { &FIRST_STAGE } else { &OTHER_STAGES }
}

/// The canonical name of a tensor that has another one in NVIDIA's PyTorch recipes.
fn of_deep_learning_examples(name: &str) -> Option<String> {
    let (index, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some(format!("layer{}.{rest}", index.parse::<usize>().ok()?.checked_add(1)?))
}

fn deep_learning_examples(canonical: &str) -> String {
    let renumbered = canonical.strip_prefix("layer").and_then(|rest| {
        let (number, rest) = rest.split_once('.')?;
        Some(format!("layers.{}.{rest}", number.parse::<usize>().ok()?.checked_sub(1)?))
    });
    renumbered.unwrap_or_else(|| canonical.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow::{self, Layout};

    #[test]
    fn names_of_other_suites() {
        for name in ["layer1.0.conv1.weight", "layers.0.0.conv1.weight", "module.layers.0.0.conv1.weight"] {
            assert_eq!(read(name), "layer1.0.conv1.weight");
        }
        assert_eq!(read("module.fc.bias"), "fc.bias");
        assert_eq!(read("layers.norm.weight"), "layers.norm.weight");
        assert_eq!(deep_learning_examples("layer2.1.bn1.bias"), "layers.1.1.bn1.bias");
        assert!(is_ignored("bn1.num_batches_tracked") && !is_ignored("bn1.bias"));
    }

    #[test]
    fn names_of_efficientnets_in_torchvision() {
        for (canonical, name) in [
            ("conv_stem.weight", "features.0.0.weight"),
            ("bn1.running_mean", "features.0.1.running_mean"),
            ("blocks.0.0.conv_dw.weight", "features.1.0.block.0.0.weight"),
            ("blocks.0.0.se.conv_reduce.bias", "features.1.0.block.1.fc1.bias"),
            ("blocks.0.1.conv_pw.weight", "features.1.1.block.2.0.weight"),
            ("blocks.5.3.conv_pw.weight", "features.6.3.block.0.0.weight"),
            ("blocks.6.0.bn3.running_var", "features.7.0.block.3.1.running_var"),
            ("conv_head.weight", "features.8.0.weight"),
            ("classifier.bias", "classifier.1.bias"),
        ] {
            assert_eq!(torchvision(canonical), name);
            assert_eq!([read(name), read(canonical)], [canonical, canonical]);
        }
        for unknown in ["features.0.block.0.0.weight", "features.2.0.block.4.0.weight", "blocks.x.0.bn1.bias"] {
            assert_eq!([read(unknown), torchvision(unknown)], [unknown, unknown]);
        }
        assert_eq!(NAMES.torchvision.map(|of| of("bn1.weight")), Some("bn1.weight".to_owned()));
    }

    #[test]
    fn names_of_tensorflow() {
        for (name, expected, layout) in [
            ("resnet50/conv2d/conv2d/kernel", "conv1.weight", Layout::Kernel),
            ("resnet50/conv2d/BatchNorm/gamma", "bn1.weight", Layout::Torch),
            ("resnet50/conv2d/BatchNorm/beta", "bn1.bias", Layout::Torch),
            ("resnet50/conv2d/BatchNorm/moving_mean", "bn1.running_mean", Layout::Torch),
            ("resnet50/conv2d/BatchNorm/moving_variance", "bn1.running_var", Layout::Torch),
            ("resnet50/btlnck_block_0_0/bottleneck_1/conv2d/kernel", "layer1.0.conv1.weight", Layout::Kernel),
            ("resnet50/btlnck_block_3_2/bottleneck_3/BatchNorm/gamma", "layer4.2.bn3.weight", Layout::Torch),
            ("resnet50/btlnck_block_2_0/shortcut/conv2d/conv2d/kernel", "layer3.0.downsample.0.weight", Layout::Kernel),
            (
                "resnet50/btlnck_block_1_0/shortcut/conv2d/BatchNorm/moving_mean",
                "layer2.0.downsample.1.running_mean",
                Layout::Torch,
            ),
            ("resnet50/output/dense/kernel", "fc.weight", Layout::Kernel),
            ("resnet50/output/dense/bias", "fc.bias", Layout::Torch),
            ("stem_conv2d/kernel", "conv_stem.weight", Layout::Kernel),
            ("stem_bn/moving_variance", "bn1.running_var", Layout::Torch),
            ("stack_0/block_0/depthwise_conv2d/depthwise_kernel", "blocks.0.0.conv_dw.weight", Layout::DepthwiseKernel),
            ("stack_0/block_0/depthwise_bn/gamma", "blocks.0.0.bn1.weight", Layout::Torch),
            ("stack_0/block_0/se_reduce_conv2d/kernel", "blocks.0.0.se.conv_reduce.weight", Layout::Kernel),
            ("stack_0/block_0/project_conv2d/kernel", "blocks.0.0.conv_pw.weight", Layout::Kernel),
            ("stack_0/block_0/project_bn/beta", "blocks.0.0.bn2.bias", Layout::Torch),
            ("stack_5/block_3/expand_conv2d/kernel", "blocks.5.3.conv_pw.weight", Layout::Kernel),
            ("stack_5/block_3/expand_bn/gamma", "blocks.5.3.bn1.weight", Layout::Torch),
            ("stack_5/block_3/depthwise_bn/gamma", "blocks.5.3.bn2.weight", Layout::Torch),
            ("stack_5/block_3/se_expand_conv2d/bias", "blocks.5.3.se.conv_expand.bias", Layout::Torch),
            ("efficientnet-b0/stack_6/block_0/project_conv2d/kernel", "blocks.6.0.conv_pwl.weight", Layout::Kernel),
            ("stack_6/block_0/project_bn/gamma", "blocks.6.0.bn3.weight", Layout::Torch),
            ("top_conv2d/kernel", "conv_head.weight", Layout::Kernel),
            ("top_bn/gamma", "bn2.weight", Layout::Torch),
            ("logits/kernel", "classifier.weight", Layout::Kernel),
        ] {
            assert_eq!(tensorflow::read(name), Some(FileName { canonical: expected.to_owned(), layout }), "{name}");
        }
        for unknown in [
            "resnet50/btlnck_block_0/bottleneck_1/conv2d/kernel",
            "resnet50/btlnck_block_0_0/bottleneck_x/conv2d/kernel",
            "resnet50/btlnck_block_0_0/bottleneck_1/conv2d/kernel/Momentum",
            "resnet50/btlnck_block_18446744073709551615_0/bottleneck_1/conv2d/kernel",
            "stack_0/block_0/expand_conv2d/kernel",
            "stack_1/block_0/fused_conv2d/kernel",
        ] {
            assert_eq!(tensorflow::read(unknown), None, "{unknown}");
        }
    }
}
