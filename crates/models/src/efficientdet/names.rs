//! Names of published detectors.

use crate::weights::{WeightNames, without_module};

/// Names of the `effdet` package. Files of its training benches put `model.` before them.
pub static NAMES: WeightNames = WeightNames {
    read: |name| {
        let name = without_module(name);
        name.strip_prefix("model.").unwrap_or(name).to_owned()
    },
    is_ignored: |canonical| canonical.ends_with("num_batches_tracked") || canonical == "anchors.boxes",
    torchvision: str::to_owned,
    deep_learning_examples: str::to_owned,
};

#[cfg(test)]
mod tests {
    use super::*;

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
