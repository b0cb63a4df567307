//! Fields that only some recipes have: by the task of the model, the optimizer and the schedule.

use super::parse::lookup;
use super::{OptimizerKind, ScheduleKind};
use crate::tasks::Kind;
use serde::Deserialize;
use toml::{Table, Value};

/// What decides which fields a recipe has.
struct Choice {
    task: Option<Kind>,
    optimizer: Option<OptimizerKind>,
    schedule: Option<ScheduleKind>,
}

/// Fields and whole sections, and who has them.
struct Group {
    /// `section.field`, or `section` for all of it.
    fields: &'static [&'static str],
    owner: &'static str,
    /// Whether a recipe has them; one whose choice is not valid has all, and the choice itself is reported later.
    has: fn(&Choice) -> bool,
}

const GROUPS: [Group; 10] = [
    Group {
        fields: &[
            "model.num_classes",
            "model.padding",
            "model.stride_in",
            "model.zero_init_last_gamma",
            "data.image_size",
            "data.crop_scale",
            "data.crop_ratio",
            "data.flip",
            "data.eval_resize",
            "data.eval_image_size",
            "data.mean",
            "data.std",
            "data.label_offset",
            "train.label_smoothing",
            "train.mixup_alpha",
            "train.drop_last",
        ],
        owner: "models that classify images",
        has: |choice| choice.task.is_none_or(|task| task == Kind::Classification),
    },
    Group {
        fields: &["model.init_std", "model.hidden_dropout", "model.attention_dropout", "model.activation"],
        owner: "models of text",
        has: |choice| choice.task.is_none_or(|task| task != Kind::Classification),
    },
    Group {
        fields: &["model.word_bias", "model.vocab_multiple", "text"],
        owner: "models that are pre-trained on text",
        has: |choice| choice.task.is_none_or(|task| matches!(task, Kind::Pretraining | Kind::Electra)),
    },
    Group {
        fields: &["text.max_predictions", "text.masking", "text.whole_word", "text.masked_mean"],
        owner: "models that are pre-trained as BERT",
        has: |choice| choice.task.is_none_or(|task| task == Kind::Pretraining),
    },
    Group {
        fields: &[
            "model.generator_fraction",
            "model.discriminator_weight",
            "model.generator",
            "model.disallow_correct",
            "text.single_segment_prob",
            "text.distinct",
        ],
        owner: "models that are pre-trained as ELECTRA",
        has: |choice| choice.task.is_none_or(|task| task == Kind::Electra),
    },
    Group {
        fields: &["squad", "optimizer.layer_decay"],
        owner: "models that answer questions",
        has: |choice| choice.task.is_none_or(|task| task == Kind::Squad),
    },
    Group {
        fields: &["optimizer.momentum", "optimizer.nesterov"],
        owner: "optimizer.kind = \"sgd\"",
        has: |choice| choice.optimizer.is_none_or(|kind| kind == OptimizerKind::Sgd),
    },
    Group {
        fields: &["optimizer.betas", "optimizer.eps", "optimizer.eps_form", "optimizer.bias_correction"],
        owner: "optimizer.kind = \"adam\", \"adamw\" or \"lamb\"",
        has: |choice| choice.optimizer.is_none_or(|kind| kind != OptimizerKind::Sgd),
    },
    Group {
        fields: &["optimizer.trust"],
        owner: "optimizer.kind = \"lamb\"",
        has: |choice| choice.optimizer.is_none_or(|kind| kind == OptimizerKind::Lamb),
    },
    Group {
        fields: &["schedule.power", "schedule.warmup_form"],
        owner: "schedule.kind = \"polynomial\"",
        has: |choice| choice.schedule.is_none_or(|kind| kind == ScheduleKind::Polynomial),
    },
];

impl Choice {
    fn of(table: &Table) -> Self {
        Self {
            task: lookup(table, "model.name").and_then(Value::as_str).and_then(Kind::of),
            optimizer: choice(lookup(table, "optimizer.kind")),
            schedule: choice(lookup(table, "schedule.kind")),
        }
    }

    /// Each field that the recipe does not have, and who has it.
    fn foreign(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        let groups = GROUPS.iter().filter(|group| !(group.has)(self));
        groups.flat_map(|group| group.fields.iter().map(|field| (*field, group.owner)))
    }
}

/// The default if there is none; `None` for one that does not exist.
fn choice<'de, T: Deserialize<'de> + Default>(value: Option<&Value>) -> Option<T> {
    value.map_or_else(|| Some(T::default()), |value| T::deserialize(value.clone()).ok())
}

/// Refuses fields that a recipe does not have.
pub(super) fn check(table: &Table) -> Result<(), (String, String)> {
    let choice = Choice::of(table);
    let given = |path: &str| match path.split_once('.') {
        None => table.contains_key(path),
        Some(_) => lookup(table, path).is_some(),
    };
    match choice.foreign().find(|(path, _)| given(path)) {
        None => Ok(()),
        Some((path, owner)) => {
            let model = lookup(table, "model.name").and_then(Value::as_str).unwrap_or("this one");
            let here = if owner.starts_with("models") { format!(", not to {model}") } else { String::new() };
            Err((path.to_owned(), format!("belongs to {owner}{here}")))
        }
    }
}

/// Takes out what a recipe does not have.
pub(super) fn strip(table: &mut Table) {
    for (path, _) in Choice::of(table).foreign() {
        match path.split_once('.') {
            None => drop(table.remove(path)),
            Some((section, field)) => {
                if let Some(section) = table.get_mut(section).and_then(Value::as_table_mut) {
                    section.remove(field);
                }
            }
        }
    }
}
