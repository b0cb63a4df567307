//! Families of models and their sizes.

use crate::{Cannot, Result};
use serde::Deserialize;
use serde_json::Value;

/// Models that differ in sizes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    ResNet,
    Bert,
    Electra,
}

impl Family {
    pub(crate) const ALL: [Self; 3] = [Self::ResNet, Self::Bert, Self::Electra];

    /// # Errors
    /// A model that is not compared.
    pub fn of(model: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|family| {
            model.starts_with(family.trunk()) && (*family != Self::Electra || model.ends_with("-squad"))
        });
        match found {
            Some(family) => Ok(family),
            None => Cannot::because(format!("{model} is none of the models that peers know")),
        }
    }

    /// How names of its models begin, and those of a text model's weights.
    pub fn trunk(self) -> &'static str {
        match self {
            Self::ResNet => "resnet",
            Self::Bert => "bert",
            Self::Electra => "electra",
        }
    }

    /// The model that stands for it.
    pub(crate) fn model(self) -> &'static str {
        match self {
            Self::ResNet => "resnet50",
            Self::Bert => "bert-base",
            Self::Electra => "electra-base-squad",
        }
    }

    /// Names of what comes out of inference.
    pub fn outputs(self) -> &'static [&'static str] {
        match self {
            Self::ResNet => &["logits"],
            Self::Bert => &["mlm_logits", "nsp_logits"],
            Self::Electra => &["start_logits", "end_logits"],
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    ResNet(ResNet),
    Text(Text),
}

/// A ResNet of bottlenecks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ResNet {
    #[serde(default = "bottleneck")]
    block: String,
    /// Blocks of each stage.
    pub layers: Vec<usize>,
}

fn bottleneck() -> String {
    "bottleneck".to_owned()
}

/// An encoder of BERT or ELECTRA.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Text {
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub layer_norm_eps: f64,
    pub hidden_act: String,
    pub embedding_size: Option<usize>,
}

impl Sizes {
    pub(crate) fn read(family: Family, sizes: Value) -> Result<Self> {
        if family != Family::ResNet {
            return Ok(Self::Text(serde_json::from_value(sizes)?));
        }
        let sizes: ResNet = serde_json::from_value(sizes)?;
        if sizes.block == bottleneck() {
            return Ok(Self::ResNet(sizes));
        }
        Cannot::because(format!("peers know ResNets of bottlenecks, not of {} blocks", sizes.block))
    }
}

impl Text {
    /// Whether GELU is the approximation with tanh.
    ///
    /// # Errors
    /// Another activation.
    pub fn is_tanh_gelu(&self) -> Result<bool> {
        match self.hidden_act.as_str() {
            "gelu" => Ok(false),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_tanh" => Ok(true),
            other => Cannot::because(format!("hidden_act {other} is no GELU")),
        }
    }

    pub fn head_width(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    pub fn projects_embeddings(&self) -> bool {
        self.embedding_size.is_some_and(|size| size != self.hidden_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn families_are_told_by_names() {
        for (model, family) in
            [("resnet101", Family::ResNet), ("bert-tiny", Family::Bert), ("electra-mini-squad", Family::Electra)]
        {
            assert_eq!(Family::of(model).unwrap(), family);
        }
        assert!(Family::of("electra-base").unwrap_err().downcast_ref::<Cannot>().is_some());
    }

    #[test]
    fn blocks_are_bottlenecks() {
        assert!(Sizes::read(Family::ResNet, json!({"layers": [1, 1, 1, 1]})).is_ok());
        let basic = Sizes::read(Family::ResNet, json!({"layers": [2], "block": "basic"}));
        assert!(basic.unwrap_err().to_string().contains("not of basic blocks"));
    }
}
