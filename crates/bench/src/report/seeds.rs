//! Runs that differ in their seed alone.

use super::Run;
use bessemer_train::events::Status;
use serde_json::Value;

/// Runs that ended well and differ from others in their seed alone, with those, in the order of the first of each group. Of runs
/// of one seed the first counts.
pub(super) fn groups(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<(Value, Vec<&Run>)> = Vec::new();
    for run in runs.iter().filter(|run| run.end.as_ref().is_some_and(|end| end.status == Status::Done)) {
        let Some(mut recipe) = run.info.as_ref().map(|info| info.recipe.clone()) else { continue };
        if let Some(seed) = recipe.pointer_mut("/train/seed") {
            *seed = Value::Null;
        }
        match groups.iter_mut().find(|(known, _)| *known == recipe) {
            Some((_, members)) if members.iter().any(|member| seed_of(member) == seed_of(run)) => {}
            Some((_, members)) => members.push(run),
            None => groups.push((recipe, vec![run])),
        }
    }
    groups.into_iter().map(|(_, members)| members).filter(|members| members.len() > 1).collect()
}

fn seed_of(run: &Run) -> Option<&Value> {
    run.info.as_ref()?.recipe.pointer("/train/seed")
}

/// The last values of a metric of all members, if they have it.
pub(super) fn values(members: &[&Run], metric: &str) -> Option<Vec<f64>> {
    members.iter().map(|run| run.end.as_ref()?.metrics.get(metric).copied()).collect()
}
