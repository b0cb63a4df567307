//! How weights are trained.

use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Training {
    #[serde(flatten)]
    pub optimizer: Optimizer,
    pub lr: f64,
    weight_decay: f64,
    decay_exclude: DecayExclude,
    #[serde(default)]
    pub label_smoothing: f64,
    /// The largest norm of all gradients together.
    pub clip_norm: Option<f64>,
    #[serde(default)]
    pub(crate) dropout: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "optimizer", rename_all = "lowercase")]
pub enum Optimizer {
    Sgd { momentum: f64, nesterov: bool },
    AdamW { betas: [f64; 2], eps: f64, bias_correction: bool },
}

/// Which parameters have no weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DecayExclude {
    None,
    BnSubstring,
    BatchNorm,
    BatchNormAndBias,
    LayerNormAndBias,
}

impl DecayExclude {
    /// Names of parameters without decay contain one of these. Batch norms of ResNet's shortcuts are `downsample.1`.
    fn parts(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::BnSubstring => &["bn"],
            Self::BatchNorm => &["bn", "downsample.1"],
            Self::BatchNormAndBias => &["bn", "downsample.1", "bias"],
            Self::LayerNormAndBias => &["bias", "gamma", "beta", "LayerNorm"],
        }
    }
}

impl Training {
    /// Weight decay of a parameter.
    pub fn decay(&self, name: &str) -> f64 {
        if self.decay_exclude.parts().iter().any(|part| name.contains(part)) { 0.0 } else { self.weight_decay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_of_both_optimizers_are_read() {
        let sgd = json!({"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": false, "weight_decay": 0.5,
            "decay_exclude": "batch_norm", "label_smoothing": 0.1, "clip_norm": null, "dropout": 0.0});
        let sgd: Training = serde_json::from_value(sgd).unwrap();
        assert_eq!(sgd.optimizer, Optimizer::Sgd { momentum: 0.9, nesterov: false });
        let decays = ["layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer1.0.downsample.1.bias", "fc.bias"];
        assert_eq!(decays.map(|name| sgd.decay(name)), [0.5, 0.0, 0.0, 0.5]);
        let adamw = json!({"optimizer": "adamw", "lr": 0.1, "betas": [0.9, 0.99], "eps": 1e-6, "bias_correction": true,
            "weight_decay": 0.01, "decay_exclude": "layer_norm_and_bias", "clip_norm": 1.0, "dropout": 0.1});
        let adamw: Training = serde_json::from_value(adamw).unwrap();
        assert_eq!(adamw.optimizer, Optimizer::AdamW { betas: [0.9, 0.99], eps: 1e-6, bias_correction: true });
        assert_eq!(["a.LayerNorm.weight", "a.bias", "a.weight"].map(|name| adamw.decay(name)), [0.0, 0.0, 0.01]);
    }
}
