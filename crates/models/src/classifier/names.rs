//! Names of published classifiers.

use crate::weights::{FileName, WeightNames, without_module};

/// The names of torchvision and timm, which are those used here, and of NVIDIA's PyTorch recipes (`layers.0` for `layer1`).
pub static NAMES: WeightNames = WeightNames { read, is_ignored, deep_learning_examples };

fn read(name: &str) -> FileName {
    let name = without_module(name);
    let renumbered = name.strip_prefix("layers.").and_then(|rest| {
        let (index, rest) = rest.split_once('.')?;
        Some(format!("layer{}.{rest}", index.parse::<usize>().ok()?.checked_add(1)?))
    });
    FileName::plain(renumbered.unwrap_or_else(|| name.to_string()))
}

/// PyTorch's count of batches.
fn is_ignored(canonical: &str) -> bool {
    canonical == "num_batches_tracked" || canonical.ends_with(".num_batches_tracked")
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
}
