//! Which variables of a checkpoint by names are a model's.

use super::Chosen;
use std::collections::BTreeSet;

/// What stands behind the name of a variable in that of its average.
const AVERAGE_SUFFIX: &str = "/ExponentialMovingAverage";
/// The last parts of names of what optimizers and loss scales keep, without the number behind a name that is there twice.
const NOT_OF_MODEL: [&str; 13] = [
    "Adagrad",
    "Adam",
    "Ftrl",
    "Momentum",
    "RMSProp",
    "adam_m",
    "adam_v",
    "beta1_power",
    "beta2_power",
    "current_loss_scale",
    "global_step",
    "good_steps",
    "loss_scale",
];

/// The variables of the model among all names, each with the name of what it is read as, and how many of them are averages. What has
/// a variable's name and more parts behind it is what an optimizer keeps for it.
pub(super) fn named_variables(names: &BTreeSet<&str>, averaged: bool) -> (Vec<Chosen>, usize) {
    let mut chosen = Vec::with_capacity(names.len());
    let mut averages = 0;
    for &name in names {
        if let Some(original) = name.strip_suffix(AVERAGE_SUFFIX) {
            if averaged && !is_kept_for(original, names) {
                averages += 1;
                chosen.push((name.to_owned(), original.to_owned()));
            }
            continue;
        }
        let is_replaced = averaged && names.contains(format!("{name}{AVERAGE_SUFFIX}").as_str());
        if !is_replaced && !is_kept_for(name, names) {
            chosen.push((name.to_owned(), name.to_owned()));
        }
    }
    (chosen, averages)
}

/// Whether an optimizer keeps it beside the model.
fn is_kept_for(name: &str, names: &BTreeSet<&str>) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let numbered = last.rsplit_once('_').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
    let last = numbered.map_or(last, |(last, _)| last);
    NOT_OF_MODEL.contains(&last) || name.match_indices('/').any(|(slash, _)| names.contains(&name[..slash]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_model_s_is_left_out() {
        let names = BTreeSet::from([
            "a/kernel",
            "a/kernel/Momentum",
            "a/kernel/LARS/trace",
            "a/kernel/ExponentialMovingAverage",
            "b/bias",
            "b/bias/Adam_1",
            "beta1_power_1",
            "training/loss_scale",
            "c/Adam",
            "d/ExponentialMovingAverage",
        ]);
        let chosen = |averaged| {
            let (chosen, averages) = named_variables(&names, averaged);
            (chosen.iter().map(|(key, name)| format!("{key}: {name}")).collect::<Vec<_>>(), averages)
        };
        assert_eq!(chosen(false), (vec!["a/kernel: a/kernel".to_owned(), "b/bias: b/bias".to_owned()], 0));
        let with_averages =
            ["a/kernel/ExponentialMovingAverage: a/kernel", "b/bias: b/bias", "d/ExponentialMovingAverage: d"];
        assert_eq!(chosen(true), (with_averages.map(str::to_owned).to_vec(), 2));
    }
}
