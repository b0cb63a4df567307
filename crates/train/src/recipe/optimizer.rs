//! Optimizers: the fields of a rule, and those that all rules have.

use super::parse::Problem;
use super::section::{Field, Known, Range, Reader, Section, Writer, section};
use bessemer_nn::{DecayExclude, EpsForm, Trust, Velocity};
use serde::{Deserialize, Serialize};
use toml::Value;

/// How gradients become changes of parameters; families may add fields.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerRecipe {
    /// Which rule, with its own fields.
    pub rule: OptimizerRule,
    /// `sgd` and `adam` add `weight_decay * w` to the gradient; the others to the direction of the step.
    pub weight_decay: f64,
    /// Parameters that weight decay leaves alone.
    pub decay_exclude: DecayExclude,
}

/// A rule with the fields that it alone has.
#[derive(Clone, Debug, PartialEq)]
pub enum OptimizerRule {
    /// Stochastic gradient descent with momentum.
    Sgd(SgdFields),
    /// Adam with weight decay in the gradient.
    Adam(AdamFields),
    /// Adam with decoupled weight decay.
    Adamw(AdamFields),
    /// LAMB: Adam with a trust ratio for each tensor.
    Lamb(AdamFields, LambFields),
}

/// The name of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// `v = momentum * v + g; w = w - lr * v`.
    Sgd,
    /// `w = w - lr * m / (sqrt(v) + eps)` with running means `m` of the gradient and `v` of its square.
    Adam,
    /// The same, with weight decay beside the means.
    Adamw,
    /// The direction of `adamw`, scaled in each tensor by the norm of the weights over its own.
    Lamb,
}

section! {
    /// The choice of the rule.
    struct KindField {
        /// Which rule.
        pub kind: OptimizerKind = OptimizerKind::Sgd;
    }
}

section! {
    /// What all rules have.
    struct DecayFields {
        /// Factor of the weights in weight decay; 0 for none.
        pub weight_decay: f64 = 1e-4 => Range::closed(0.0, 1.0);
        /// Parameters without weight decay.
        pub decay_exclude: DecayExclude = DecayExclude::None;
    }
}

section! {
    /// Of `sgd`.
    pub struct SgdFields {
        /// Decay of the running sum of gradients; 0 for plain gradient descent.
        pub momentum: f64 = 0.9 => Range::below(0.0, 1.0);
        /// Whether the step is Nesterov's.
        pub nesterov: bool = false;
        /// What the momentum keeps: gradients, or changes with the rates at which they were made (Keras).
        pub velocity: Velocity = Velocity::Gradients;
    }
}

section! {
    /// Of `adam`, `adamw` and `lamb`.
    pub struct AdamFields {
        /// Decay of the running means of gradients and of their squares.
        pub betas: [f64; 2] = [0.9, 0.999] => Range::below(0.0, 1.0);
        /// Term that keeps the denominator above zero.
        pub eps: f64 = 1e-6 => Range::above(0.0, 1.0);
        /// Where `eps` stands.
        pub eps_form: EpsForm = EpsForm::OutsideSqrt;
        /// Whether the means make up for their start at zero.
        pub bias_correction: bool = true;
    }
}

section! {
    /// Of `lamb`.
    pub struct LambFields {
        /// Tensors that have a learning rate of their own.
        pub trust: Trust = Trust::Decayed;
    }
}

const SECTION: &str = "optimizer";

impl OptimizerRule {
    fn kind(&self) -> OptimizerKind {
        match self {
            OptimizerRule::Sgd(_) => OptimizerKind::Sgd,
            OptimizerRule::Adam(_) => OptimizerKind::Adam,
            OptimizerRule::Adamw(_) => OptimizerKind::Adamw,
            OptimizerRule::Lamb(..) => OptimizerKind::Lamb,
        }
    }
}

impl OptimizerRecipe {
    pub(super) fn read(reader: &mut Reader) -> Result<Self, Problem> {
        let KindField { kind } = reader.take(SECTION)?;
        let rule = match kind {
            OptimizerKind::Sgd => OptimizerRule::Sgd(reader.take(SECTION)?),
            OptimizerKind::Adam => OptimizerRule::Adam(reader.take(SECTION)?),
            OptimizerKind::Adamw => OptimizerRule::Adamw(reader.take(SECTION)?),
            OptimizerKind::Lamb => OptimizerRule::Lamb(reader.take(SECTION)?, reader.take(SECTION)?),
        };
        let DecayFields { weight_decay, decay_exclude } = reader.take(SECTION)?;
        Ok(Self { rule, weight_decay, decay_exclude })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(SECTION, &KindField { kind: self.rule.kind() });
        match &self.rule {
            OptimizerRule::Sgd(sgd) => writer.put(SECTION, sgd),
            OptimizerRule::Adam(adam) | OptimizerRule::Adamw(adam) => writer.put(SECTION, adam),
            OptimizerRule::Lamb(adam, lamb) => {
                writer.put(SECTION, adam);
                writer.put(SECTION, lamb);
            }
        }
        let &Self { weight_decay, decay_exclude, .. } = self;
        writer.put(SECTION, &DecayFields { weight_decay, decay_exclude });
    }

    /// The fields of a rule, and of all rules where it is not one.
    pub(super) fn fields(kind: Option<&Value>) -> Known {
        let kind = kind.map_or(Ok(OptimizerKind::Sgd), |kind| OptimizerKind::deserialize(kind.clone()));
        let own: &[&'static [Field]] = match kind {
            Ok(OptimizerKind::Sgd) => &[SgdFields::FIELDS],
            Ok(OptimizerKind::Adam | OptimizerKind::Adamw) => &[AdamFields::FIELDS],
            Ok(OptimizerKind::Lamb) => &[AdamFields::FIELDS, LambFields::FIELDS],
            Err(_) => &[SgdFields::FIELDS, AdamFields::FIELDS, LambFields::FIELDS],
        };
        let all = [KindField::FIELDS, DecayFields::FIELDS];
        all.into_iter().chain(own.iter().copied()).map(|fields| (SECTION, fields)).collect()
    }

    /// The fields of each rule, for messages.
    pub(super) fn fields_by_rule() -> [(&'static str, &'static [Field], &'static str); 3] {
        [
            (SECTION, SgdFields::FIELDS, "optimizer.kind = \"sgd\""),
            (SECTION, AdamFields::FIELDS, "optimizer.kind = \"adam\", \"adamw\" and \"lamb\""),
            (SECTION, LambFields::FIELDS, "optimizer.kind = \"lamb\""),
        ]
    }
}
