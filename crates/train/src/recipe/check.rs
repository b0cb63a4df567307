//! What values a recipe may have.

use super::parse::{ALTERNATIVES, lookup};
use super::{Init, Per, Recipe, ScheduleKind};
use crate::tasks::Kind;
use std::fmt;
use toml::{Table, Value};

/// `(path, problem)`
type Problem = (String, String);

struct Range {
    low: f64,
    high: f64,
    low_excluded: bool,
    high_excluded: bool,
}

impl Range {
    fn contains(&self, value: f64) -> bool {
        let above = if self.low_excluded { value > self.low } else { value >= self.low };
        let below = if self.high_excluded { value < self.high } else { value <= self.high };
        above && below
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = if self.low_excluded { "above " } else { "" };
        let below = if self.high_excluded { "below " } else { "" };
        write!(f, "{above}{} to {below}{}", self.low, self.high)
    }
}

const fn closed(low: f64, high: f64) -> Range {
    Range { low, high, low_excluded: false, high_excluded: false }
}

const fn above(low: f64, high: f64) -> Range {
    Range { low_excluded: true, ..closed(low, high) }
}

const fn below(low: f64, high: f64) -> Range {
    Range { high_excluded: true, ..closed(low, high) }
}

const fn between(low: f64, high: f64) -> Range {
    Range { low_excluded: true, high_excluded: true, ..closed(low, high) }
}

const COUNT: f64 = 1e12;
const BATCH: f64 = 65_536.0;
const PIXELS: f64 = 8192.0;

/// Ranges of numbers, and of each number in an array.
const RANGES: [(&str, Range); 63] = [
    ("model.num_classes", closed(1.0, 1_000_000.0)),
    ("model.init_std", above(0.0, 1.0)),
    ("model.hidden_dropout", below(0.0, 1.0)),
    ("model.attention_dropout", below(0.0, 1.0)),
    ("model.vocab_multiple", closed(1.0, 4096.0)),
    ("model.generator_fraction", above(0.0, 1.0)),
    ("model.discriminator_weight", closed(0.0, 10_000.0)),
    ("data.train_samples", closed(1.0, COUNT)),
    ("data.eval_samples", closed(1.0, COUNT)),
    ("data.image_size", closed(8.0, PIXELS)),
    ("data.crop_scale", above(0.0, 1.0)),
    ("data.crop_ratio", closed(0.01, 100.0)),
    ("data.flip", closed(0.0, 1.0)),
    ("data.eval_resize", closed(8.0, PIXELS)),
    ("data.eval_image_size", closed(8.0, PIXELS)),
    ("data.mean", closed(0.0, 1.0)),
    ("data.std", above(0.0, 1.0)),
    ("data.label_offset", closed(0.0, 1.0)),
    ("text.sequence_length", closed(8.0, 65_536.0)),
    ("text.max_predictions", closed(1.0, 65_536.0)),
    ("text.masked_lm_prob", between(0.0, 1.0)),
    ("text.short_seq_prob", closed(0.0, 1.0)),
    ("text.single_segment_prob", closed(0.0, 1.0)),
    ("squad.sequence_length", closed(16.0, 65_536.0)),
    ("squad.doc_stride", closed(1.0, 65_536.0)),
    ("squad.max_query_length", closed(1.0, 65_536.0)),
    ("squad.max_answer_length", closed(1.0, 65_536.0)),
    ("squad.beam", closed(1.0, 64.0)),
    ("squad.n_best", closed(1.0, 10_000.0)),
    ("squad.null_threshold", closed(-1e6, 1e6)),
    ("train.batch_size", closed(1.0, BATCH)),
    ("train.accumulation", closed(1.0, 1_000_000.0)),
    ("train.epochs", closed(1.0, 1e6)),
    ("train.steps", closed(1.0, COUNT)),
    ("train.seed", closed(0.0, i64::MAX as f64)),
    ("train.label_smoothing", below(0.0, 1.0)),
    ("train.mixup_alpha", closed(0.0, 100.0)),
    ("train.clip_norm", above(0.0, 1e6)),
    ("train.ema_decay", between(0.0, 1.0)),
    ("optimizer.momentum", below(0.0, 1.0)),
    ("optimizer.betas", below(0.0, 1.0)),
    ("optimizer.eps", above(0.0, 1.0)),
    ("optimizer.layer_decay", above(0.0, 1.0)),
    ("optimizer.weight_decay", closed(0.0, 1.0)),
    ("schedule.base_lr", above(0.0, 1000.0)),
    ("schedule.lr_per", closed(1.0, 1e6)),
    ("schedule.warmup_epochs", closed(0.0, 1e6)),
    ("schedule.warmup_steps", closed(0.0, COUNT)),
    ("schedule.warmup_fraction", closed(0.0, 1.0)),
    ("schedule.power", above(0.0, 100.0)),
    ("schedule.end_lr", closed(0.0, 1000.0)),
    ("schedule.milestones", closed(1.0, 1e6)),
    ("schedule.gamma", above(0.0, 1.0)),
    ("precision.loss_scale", closed(1.0, 16_777_216.0)),
    ("precision.loss_scale_growth_steps", closed(1.0, 1e6)),
    ("eval.every_epochs", closed(1.0, 1e6)),
    ("eval.every_steps", closed(1.0, COUNT)),
    ("eval.batch_size", closed(1.0, BATCH)),
    ("checkpoint.every_epochs", closed(1.0, 1e6)),
    ("checkpoint.every_steps", closed(1.0, COUNT)),
    ("checkpoint.keep", closed(1.0, 10_000.0)),
    ("loader.workers", closed(0.0, 1024.0)),
    ("loader.prefetch", closed(1.0, 1024.0)),
];

/// Checks every number that is there; types are left to deserialisation.
pub(super) fn ranges(table: &Table) -> Result<(), Problem> {
    for (path, range) in &RANGES {
        let Some(value) = lookup(table, path) else { continue };
        for number in numbers(value) {
            if !range.contains(number) {
                return Err(((*path).to_owned(), format!("{value} is not allowed; the range is {range}")));
            }
        }
    }
    Ok(())
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Integer(integer) => vec![*integer as f64],
        Value::Float(float) => vec![*float],
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

/// Checks what fields say together.
pub(super) fn combinations(recipe: &Recipe) -> Result<(), Problem> {
    alternatives(recipe)?;
    initialisation(recipe)?;
    match Kind::of(&recipe.model.name) {
        Some(Kind::Pretraining) => text(recipe)?,
        Some(Kind::Electra) => {}
        Some(Kind::Squad) => squad(recipe)?,
        Some(Kind::Classification) | None => images(recipe)?,
    }
    schedule(recipe)?;
    require(
        recipe.optimizer.momentum > 0.0 || !recipe.optimizer.nesterov,
        "optimizer.nesterov",
        "needs a momentum above 0".to_owned(),
    )
}

fn alternatives(recipe: &Recipe) -> Result<(), Problem> {
    let (train, eval, checkpoint) = (&recipe.train, &recipe.eval, &recipe.checkpoint);
    let given = [
        (train.epochs.is_some(), train.steps.is_some()),
        (eval.every_epochs.is_some(), eval.every_steps.is_some()),
        (checkpoint.every_epochs.is_some(), checkpoint.every_steps.is_some()),
    ];
    for ((one, other), given) in ALTERNATIVES.iter().zip(given) {
        require(given != (true, true), one, format!("only one of {one} and {other} can be given"))?;
    }
    require(given[0] != (false, false), "train", "one of train.epochs and train.steps must be given".to_owned())
}

/// Those that a model may begin with, the usual ones first.
pub(super) fn initial_weights(model: &str) -> &'static [Init] {
    Init::of(Kind::of(model).unwrap_or(Kind::Classification))
}

fn initialisation(recipe: &Recipe) -> Result<(), Problem> {
    let model = &recipe.model;
    let (allowed, name) = (initial_weights(&model.name), |init| Value::try_from(init).expect("a name").to_string());
    let Some(init) = model.init.filter(|init| !allowed.contains(init)) else { return Ok(()) };
    let names = allowed.iter().map(name).collect::<Vec<_>>().join(", ");
    Err(("model.init".to_owned(), format!("{} is not for {}: there are {names}", name(&init), model.name)))
}

fn images(recipe: &Recipe) -> Result<(), Problem> {
    let data = &recipe.data;
    require(recipe.model.num_classes > 0, "model", "missing field `num_classes`".to_owned())?;
    for (path, [low, high]) in [("data.crop_scale", data.crop_scale), ("data.crop_ratio", data.crop_ratio)] {
        require(low <= high, path, format!("[{low}, {high}] must be in ascending order"))?;
    }
    let (resize, size) = (data.eval_resize, data.eval_image_size);
    require(resize >= size, "data.eval_resize", format!("{resize} is smaller than data.eval_image_size = {size}"))
}

fn text(recipe: &Recipe) -> Result<(), Problem> {
    let (length, predictions) = (recipe.text.sequence_length, recipe.text.max_predictions);
    let problem = format!("{predictions} is more than the {} words of a sequence", length.saturating_sub(3));
    require(predictions + 3 <= length, "text.max_predictions", problem)
}

fn squad(recipe: &Recipe) -> Result<(), Problem> {
    let squad = &recipe.squad;
    let room = squad.sequence_length.saturating_sub(squad.max_query_length + 3);
    let problem = format!("{} leaves {room} tokens of a window for the context", squad.max_query_length);
    require(room > 0, "squad.max_query_length", problem)?;
    let problem = format!("{} is more than the {room} tokens of context in a window", squad.doc_stride);
    require(squad.doc_stride <= room, "squad.doc_stride", problem)
}

fn schedule(recipe: &Recipe) -> Result<(), Problem> {
    let schedule = &recipe.schedule;
    let stepwise = schedule.kind == ScheduleKind::Step;
    let decays = matches!(schedule.kind, ScheduleKind::Linear | ScheduleKind::Cosine | ScheduleKind::Polynomial);
    let warmups = [schedule.warmup_epochs > 0.0, schedule.warmup_steps.is_some(), schedule.warmup_fraction.is_some()];
    require(
        warmups.into_iter().filter(|given| *given).count() <= 1,
        "schedule",
        "only one of warmup_epochs, warmup_steps and warmup_fraction can be given".to_owned(),
    )?;
    require(
        stepwise != schedule.milestones.is_empty(),
        "schedule.milestones",
        "belongs to schedule.kind = \"step\", and must be given there".to_owned(),
    )?;
    require(
        schedule.milestones.is_sorted_by(|a, b| a < b),
        "schedule.milestones",
        format!("{:?} must be in ascending order", schedule.milestones),
    )?;
    require(
        decays || schedule.end_lr == 0.0,
        "schedule.end_lr",
        "belongs to schedule.kind = \"linear\", \"cosine\" or \"polynomial\"".to_owned(),
    )?;
    require(
        !schedule.warmup_in_decay || (decays && schedule.per == Per::Step),
        "schedule.warmup_in_decay",
        "needs schedule.kind = \"linear\" or \"cosine\" and schedule.per = \"step\"".to_owned(),
    )?;
    require(
        schedule.kind != ScheduleKind::Polynomial || (schedule.per == Per::Step && !schedule.warmup_in_decay),
        "schedule.kind",
        "\"polynomial\" counts steps: schedule.per must be \"step\"; schedule.warmup_form says how it warms up"
            .to_owned(),
    )
}

fn require(holds: bool, path: &str, problem: String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err((path.to_owned(), problem)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Override, builtin_names};

    #[test]
    fn every_number_of_a_recipe_has_a_range() {
        for name in builtin_names() {
            let table = Recipe::load(name, &[]).unwrap().to_table();
            for (section, fields) in table.iter().filter_map(|(name, value)| Some((name, value.as_table()?))) {
                for (field, value) in fields.iter().filter(|(_, value)| !numbers(value).is_empty()) {
                    let path = format!("{section}.{field}");
                    assert!(RANGES.iter().any(|(known, _)| *known == path), "{path} = {value} has no range");
                }
            }
        }
    }

    #[test]
    fn every_range_names_a_field() {
        for (path, range) in &RANGES {
            let value = Value::Float(range.high * 2.0 + 1.0);
            let with = |recipe: &str, value: Value| {
                let recipe = Recipe::load(recipe, &[]).unwrap();
                recipe.with_overrides(&[Override::new(*path, value)]).unwrap_err().to_string()
            };
            let owner = builtin_names().find(|name| !with(name, value.clone()).contains("belongs to")).unwrap();
            let text = with(owner, value.clone());
            assert!(text.contains(&format!("{path}: ")) && text.contains("the range is"), "{text}");
            let error = with(owner, Value::from("x"));
            assert!(error.contains("invalid type"), "{path} is not a field: {error}");
        }
    }
}
