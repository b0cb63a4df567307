//! Names of published classifiers.

use crate::weights::{FileName, WeightNames, without_module};

/// Names of ResNets: those used here are timm's and torchvision's, and NVIDIA's PyTorch recipes have others (`layers.0` for
/// `layer1`). Those of EfficientNets are read as well.
pub static NAMES: WeightNames = WeightNames { read, is_ignored, torchvision: str::to_owned, deep_learning_examples };

/// Names of EfficientNets: those used here are timm's, and torchvision has others (`features.1.0.block.0.0` for
/// `blocks.0.0.conv_dw`). Those of ResNets are read as well.
pub static EFFICIENTNET_NAMES: WeightNames =
    WeightNames { read, is_ignored, torchvision, deep_learning_examples: str::to_owned };

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

fn read(name: &str) -> FileName {
    let name = without_module(name);
    let renamed = of_deep_learning_examples(name).or_else(|| of_torchvision(name));
    FileName::plain(renamed.unwrap_or_else(|| name.to_string()))
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

    #[test]
    fn names_of_other_suites() {
        for name in ["layer1.0.conv1.weight", "layers.0.0.conv1.weight", "module.layers.0.0.conv1.weight"] {
            assert_eq!(read(name), FileName::plain("layer1.0.conv1.weight"));
        }
        assert_eq!(read("module.fc.bias"), FileName::plain("fc.bias"));
        assert_eq!(read("layers.norm.weight"), FileName::plain("layers.norm.weight"));
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
            assert_eq!([read(name), read(canonical)], [canonical, canonical].map(FileName::plain));
        }
        for unknown in ["features.0.block.0.0.weight", "features.2.0.block.4.0.weight", "blocks.x.0.bn1.bias"] {
            assert_eq!([read(unknown).canonical, torchvision(unknown)], [unknown, unknown]);
        }
        assert_eq!((NAMES.torchvision)("bn1.weight"), "bn1.weight");
    }
}
