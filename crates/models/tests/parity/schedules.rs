//! Learning rates against the formulas of NVIDIA's recipes.

use crate::fixtures::json;
use bessemer_nn::{Decay, Form, Schedule};

#[test]
fn every_step_of_every_case() {
    let cases = json("schedules.json");
    let cases = cases.as_array().expect("a list");
    assert_eq!(cases.len(), 8);
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let number = |field: &str| case[field].as_f64().unwrap_or(0.0);
        let decay = if name.contains("cosine") {
            Decay::Cosine
        } else if name.contains("linear") {
            Decay::Polynomial { power: 1.0 }
        } else {
            let epochs = case["boundaries"].as_array().expect("a list");
            let epochs = epochs.iter().map(|e| e.as_f64().expect("a number")).collect();
            Decay::Milestones { epochs, factor: number("factor") }
        };
        let schedule = Schedule {
            lr: number("lr"),
            warmup_lr: 0.0,
            end_lr: number("end_lr"),
            epochs: number("epochs"),
            steps_per_epoch: number("steps_per_epoch") as u64,
            warmup_epochs: number("warmup_epochs"),
            form: if name.starts_with("torch") { Form::Epoch } else { Form::WholeRun },
            decay,
        };
        for (step, rate) in case["rates"].as_array().expect("a list").iter().enumerate() {
            let (actual, expected) = (schedule.learning_rate(step as u64), rate.as_f64().expect("a number"));
            assert!((actual - expected).abs() < 1e-12, "{name} at step {step}: {actual}, not {expected}");
        }
    }
}
