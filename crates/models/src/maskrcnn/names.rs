//! Names of published models.

use crate::weights::{FileName, WeightNames, without_module};

/// Names of torchvision's `maskrcnn_resnet50_fpn`; those of its published file are older and read as well.
pub static NAMES: WeightNames = WeightNames {
    read: |name| {
        let name = without_module(name);
        FileName::plain(of_published_file(name).unwrap_or_else(|| name.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
