//! What the fields of a recipe say together.

use super::parse::{ALTERNATIVES, Problem};
use super::{OptimizerRule, Per, Recipe, ScheduleKind};

/// Checks the fields that all recipes have.
pub(super) fn combinations(recipe: &Recipe) -> Result<(), Problem> {
    alternatives(recipe)?;
    schedule(recipe)?;
    match &recipe.optimizer.rule {
        OptimizerRule::Sgd(sgd) => {
            require(sgd.momentum > 0.0 || !sgd.nesterov, "optimizer.nesterov", || "needs a momentum above 0".to_owned())
        }
        OptimizerRule::Adam(_) | OptimizerRule::Adamw(_) | OptimizerRule::Lamb(..) => Ok(()),
    }
}

fn alternatives(recipe: &Recipe) -> Result<(), Problem> {
    let Recipe { train, eval, checkpoint, start, .. } = recipe;
    let given = [
        (train.epochs.is_some(), train.steps.is_some()),
        (eval.every_epochs.is_some(), eval.every_steps.is_some()),
        (checkpoint.every_epochs.is_some(), checkpoint.every_steps.is_some()),
        (start.weights.is_some(), start.init_from.is_some()),
    ];
    for ((one, other), given) in ALTERNATIVES.iter().zip(given) {
        require(given != (true, true), one, || format!("only one of {one} and {other} can be given"))?;
    }
    require(given[0] != (false, false), "train", || "one of train.epochs and train.steps must be given".to_owned())
}

fn schedule(recipe: &Recipe) -> Result<(), Problem> {
    let schedule = &recipe.schedule;
    let stepwise = schedule.kind == ScheduleKind::Step;
    let decays = matches!(schedule.kind, ScheduleKind::Linear | ScheduleKind::Cosine | ScheduleKind::Polynomial);
    let is_polynomial = schedule.kind == ScheduleKind::Polynomial;
    for (path, given) in
        [("schedule.power", schedule.power.is_some()), ("schedule.warmup_form", schedule.warmup_form.is_some())]
    {
        require(is_polynomial || !given, path, || "belongs to schedule.kind = \"polynomial\"".to_owned())?;
    }
    let warmups = [schedule.warmup_epochs > 0.0, schedule.warmup_steps.is_some(), schedule.warmup_fraction.is_some()];
    require(warmups.into_iter().filter(|given| *given).count() <= 1, "schedule", || {
        "only one of warmup_epochs, warmup_steps and warmup_fraction can be given".to_owned()
    })?;
    require(stepwise != schedule.milestones.is_empty(), "schedule.milestones", || {
        "belongs to schedule.kind = \"step\", and must be given there".to_owned()
    })?;
    require(schedule.milestones.is_sorted_by(|a, b| a < b), "schedule.milestones", || {
        format!("{:?} must be in ascending order", schedule.milestones)
    })?;
    require(decays || schedule.end_lr == 0.0, "schedule.end_lr", || {
        "belongs to schedule.kind = \"linear\", \"cosine\" or \"polynomial\"".to_owned()
    })?;
    let counts = (decays || stepwise) && schedule.per == Per::Step;
    require(!schedule.warmup_in_decay || counts, "schedule.warmup_in_decay", || {
        "needs schedule.kind = \"linear\", \"cosine\" or \"step\" and schedule.per = \"step\"".to_owned()
    })?;
    require(!is_polynomial || (schedule.per == Per::Step && !schedule.warmup_in_decay), "schedule.kind", || {
        "\"polynomial\" counts steps: schedule.per must be \"step\"; schedule.warmup_form says how it warms up"
            .to_owned()
    })
}

/// The problem of a field where something does not hold.
pub(crate) fn require(holds: bool, path: &str, problem: impl FnOnce() -> String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err((path.to_owned(), problem())) }
}
