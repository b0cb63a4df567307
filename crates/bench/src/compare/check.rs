//! Whether a framework did the work that Bessemer did: losses of a few steps without dropout, or outputs, from the same weights
//! on the same batches.

use super::Group;
use super::detections::{self, AllowedDetections, Distance};
use crate::peers::protocol::Answer;
use crate::show;
use crate::workload::{DetectorOutputs, Mode};
use bessemer_train::events::{Verdict, WorkCheck};
use bessemer_train::recipe::Compute;
use bessemer_weights::TensorFile;
use std::path::Path;

/// Steps of a check of training: one loss before any update, and one after each of three.
pub(super) const TRAINING_STEPS: usize = 4;

/// The largest relative distances that pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allowed {
    /// Of the first loss.
    pub first: f64,
    /// Of the losses after updates.
    pub later: f64,
    /// Of outputs, in the L2 norm.
    pub outputs: f64,
    /// Of logits and deltas of a detector, in the L2 norm about their mean: nearly all logits are those of the background.
    pub network: f64,
    /// Of detections.
    pub detections: AllowedDetections,
}

impl Allowed {
    pub(crate) fn of(precision: Compute) -> Allowed {
        match precision {
            Compute::Fp32 => Allowed {
                first: 1e-4,
                later: 1e-3,
                outputs: 1e-3,
                network: 1e-3,
                detections: AllowedDetections { scores: 1e-3, overlap: 0.99, alone: 0.02, masks: 0.98 },
            },
            Compute::Tf32 | Compute::Bf16 | Compute::Fp16 => Allowed {
                first: 1e-2,
                later: 3e-2,
                outputs: 3e-2,
                // Through some hundred layers of random weights roundings grow: in bf16, outputs are 0.1 to 0.25 from those in fp32.
                network: 0.4,
                // PyTorch keeps corners in bf16, too: they are up to 4 pixels off at 1,000, and other boxes are suppressed.
                detections: AllowedDetections { scores: 0.1, overlap: 0.5, alone: 0.7, masks: 0.5 },
            },
        }
    }
}

/// What the check compares with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference<'a> {
    pub answer: &'a Answer,
    pub outputs: &'a Path,
}

/// Compares a run with the reference.
pub(super) fn compare(group: &Group, reference: Reference<'_>, answer: &Answer, outputs: &Path) -> WorkCheck {
    let allowed = Allowed::of(group.precision);
    if group.mode == Mode::Train {
        return of_losses(allowed, &reference.answer.losses, &answer.losses);
    }
    let check = match group.outputs() {
        Some(DetectorOutputs::Detections) => of_detections(&allowed.detections, reference.outputs, outputs),
        Some(DetectorOutputs::Network) => of_outputs(allowed.network, about_mean, reference.outputs, outputs),
        None => of_outputs(allowed.outputs, relative_l2, reference.outputs, outputs),
    };
    check.unwrap_or_else(|problem| WorkCheck {
        verdict: Verdict::Different,
        allowed: [allowed.outputs; 2],
        note: Some(problem),
        ..WorkCheck::default()
    })
}

fn of_outputs(allowed: f64, norm: Norm, wanted: &Path, found: &Path) -> Result<WorkCheck, String> {
    let (distance, name) = outputs_distance(norm, wanted, found)?;
    let note = is_far(distance, allowed)
        .then(|| format!("`{name}` is {distance:.1e} from Bessemer's, {allowed:.0e} are allowed"));
    let verdict = verdict(note.is_none());
    Ok(WorkCheck { verdict, first: Some(distance), allowed: [allowed; 2], note, ..WorkCheck::default() })
}

/// The distance of the scores, the share of detections that have no partner, and the overlap of the masks of those that have one.
fn of_detections(allowed: &AllowedDetections, wanted: &Path, found: &Path) -> Result<WorkCheck, String> {
    let Distance { scores, alone, masks } = detections::distance(wanted, found, allowed)?;
    let note = if is_far(scores, allowed.scores) {
        Some(format!("its scores are {scores:.1e} from Bessemer's, {:.0e} are allowed", allowed.scores))
    } else if is_far(alone, allowed.alone) {
        let [alone, most] = [alone, allowed.alone].map(show::percent);
        Some(format!("{alone} of the detections have no partner among Bessemer's, {most} are allowed"))
    } else {
        masks.filter(|masks| *masks < allowed.masks).map(|masks| {
            let [masks, least] = [masks, allowed.masks].map(show::percent);
            format!("its masks overlap Bessemer's by {masks} on average, at least {least} is asked for")
        })
    };
    Ok(WorkCheck {
        verdict: verdict(note.is_none()),
        first: Some(scores),
        later: Some(alone),
        allowed: [allowed.scores, allowed.alone],
        masks,
        note,
    })
}

fn is_far(distance: f64, allowed: f64) -> bool {
    distance > allowed || distance.is_nan()
}

fn verdict(same: bool) -> Verdict {
    if same { Verdict::Same } else { Verdict::Different }
}

fn of_losses(allowed: Allowed, wanted: &[f64], found: &[f64]) -> WorkCheck {
    let check = WorkCheck { allowed: [allowed.first, allowed.later], ..WorkCheck::default() };
    if wanted.is_empty() || wanted.len() != found.len() {
        let note = Some(format!("it reported {} of {} losses", found.len(), wanted.len()));
        return WorkCheck { verdict: Verdict::Different, note, ..check };
    }
    let distances: Vec<f64> = wanted
        .iter()
        .zip(found)
        .map(|(wanted, found)| (found - wanted).abs() / wanted.abs().max(f64::MIN_POSITIVE))
        .collect();
    let note = distances.iter().enumerate().find_map(|(step, &distance)| {
        let most = if step == 0 { allowed.first } else { allowed.later };
        is_far(distance, most).then(|| {
            let (found, wanted) = (found[step], wanted[step]);
            format!("its loss after {step} updates is {found:.6}, Bessemer's {wanted:.6}: {distance:.1e}, {most:.0e} are allowed")
        })
    });
    let later = distances[1..].iter().copied().fold(0.0, |most: f64, x| if x.is_nan() { x } else { most.max(x) });
    WorkCheck { verdict: verdict(note.is_none()), first: Some(distances[0]), later: Some(later), note, ..check }
}

/// The largest distance of an output, and its name; or why the files cannot be compared.
fn outputs_distance(norm: Norm, wanted: &Path, found: &Path) -> Result<(f64, String), String> {
    let open = |path: &Path| TensorFile::open(path).map_err(|error| error.to_string());
    let numbers = |file: &TensorFile, name: &str| file.read_f32(name).map_err(|error| error.to_string());
    let shape =
        |file: &TensorFile, name: &str| file.shape(name).map(<[usize]>::to_vec).map_err(|error| error.to_string());
    let (wanted, found) = (open(wanted)?, open(found)?);
    let mut worst = (0.0, String::new());
    for name in wanted.names() {
        let (ours, other) = (shape(&wanted, name)?, shape(&found, name)?);
        if ours != other {
            return Err(format!("`{name}` is {other:?}, Bessemer's {ours:?}"));
        }
        let distance = norm(&numbers(&found, name)?, &numbers(&wanted, name)?);
        if worst.1.is_empty() || distance > worst.0 || distance.is_nan() {
            worst = (distance, name.to_owned());
        }
    }
    Ok(worst)
}

/// A relative distance of what was found from what was wanted.
type Norm = fn(&[f32], &[f32]) -> f64;

/// `|found - wanted| / |wanted - mean|`, with the mean of all that is wanted
fn about_mean(found: &[f32], wanted: &[f32]) -> f64 {
    let mean = (wanted.iter().map(|&x| f64::from(x)).sum::<f64>() / wanted.len() as f64) as f32;
    let [found, wanted] = [found, wanted].map(|numbers| numbers.iter().map(|x| x - mean).collect::<Vec<f32>>());
    relative_l2(&found, &wanted)
}

/// `|found - wanted| / |wanted|`
fn relative_l2(found: &[f32], wanted: &[f32]) -> f64 {
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(wanted).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    difference / norm(&mut wanted.iter().map(|&x| f64::from(x))).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::super::{Part, Plan, Usual};
    use super::*;
    use crate::workload::StepSettings;
    use bessemer_weights::{NamedTensor, write_safetensors};
    use tempfile::TempDir;

    /// The first group of a model's inference in fp32.
    fn group(model: &str) -> Group {
        let common = Part {
            models: Some(vec![model.to_owned()]),
            modes: Some(vec![Mode::Infer]),
            frameworks: Some(vec!["x".to_owned()]),
            ..Part::default()
        };
        Plan { common, parts: Vec::new() }.groups(&Usual::QUICK).unwrap().remove(0)
    }

    #[test]
    fn losses_must_be_near() {
        let fp32 = Allowed::of(Compute::Fp32);
        let wanted = [4.0, 3.0, 2.0, 1.0];
        let check = |found: &[f64]| of_losses(fp32, &wanted, found);
        assert_eq!(check(&[4.0001, 3.002, 2.0, 1.0]).verdict, Verdict::Same);
        let first = check(&[4.001, 3.0, 2.0, 1.0]);
        assert_eq!(first.verdict, Verdict::Different);
        assert!(first.note.unwrap().contains("after 0 updates is 4.001000"));
        assert!(check(&[4.0, 3.0, 2.0, 1.01]).note.unwrap().contains("after 3 updates"));
        assert_eq!(check(&[4.0, f64::NAN, 2.0, 1.0]).verdict, Verdict::Different);
        assert_eq!(check(&[4.0]).verdict, Verdict::Different);
        let near = of_losses(Allowed::of(Compute::Bf16), &wanted, &[4.03, 3.08, 2.0, 1.0]);
        assert_eq!(near.verdict, Verdict::Same, "{near:?}");
    }

    #[test]
    fn outputs_must_be_near_and_of_one_form() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |file: &str, name: &str, shape: [usize; 2], numbers: &[f32]| {
            write_safetensors(&path(file), &[NamedTensor::from_f32(name, shape, numbers).unwrap()]).unwrap();
        };
        write("ours", "logits", [2, 2], &[3.0, 4.0, 0.0, 0.0]);
        write("near", "logits", [2, 2], &[3.0, 4.0, 0.004, 0.0]);
        write("far", "logits", [2, 2], &[3.0, 4.0, 0.006, 0.0]);
        write("nan", "logits", [2, 2], &[3.0, 4.0, f32::NAN, 0.0]);
        write("flat", "logits", [1, 4], &[3.0, 4.0, 0.0, 0.0]);
        write("other", "scores", [2, 2], &[3.0, 4.0, 0.0, 0.0]);
        let answer: Answer =
            serde_json::from_str(r#"{"protocol":1,"framework":"x","version":"1","step_ms":[],"window_s":1.0}"#)
                .unwrap();
        let (outputs, near) = (path("ours"), path("near"));
        let reference = Reference { answer: &answer, outputs: &outputs };
        let group = group("resnet50");
        let check = |file: &Path| compare(&group, reference, &answer, file);
        let same = check(&near);
        assert_eq!(same.verdict, Verdict::Same);
        assert!((same.first.unwrap() - 0.0008).abs() < 1e-8);
        for (file, expected) in [
            ("far", "`logits` is 1.2e-3"),
            ("nan", "NaN"),
            ("flat", "is [1, 4], Bessemer's [2, 2]"),
            ("other", "no tensor `logits`"),
            ("absent", "absent"),
        ] {
            let check = check(&path(file));
            assert_eq!(check.verdict, Verdict::Different);
            assert!(check.note.as_ref().unwrap().contains(expected), "{check:?}");
        }
    }
    #[test]
    fn logits_are_compared_about_their_mean() {
        let logits = [-4.5f32, -4.7, -4.6, -4.6];
        let off = [-4.5f32, -4.7, -4.6, -4.58];
        assert!(relative_l2(&off, &logits) < 3e-3);
        assert!((about_mean(&off, &logits) - 0.02 / 0.02f64.sqrt()).abs() < 1e-5);
        assert_eq!(about_mean(&logits, &logits), 0.0);
        let groups = |outputs| Group {
            settings: StepSettings { outputs, ..StepSettings::default() },
            ..group("efficientdet-d0")
        };
        let folder = TempDir::new().unwrap();
        let [ours, theirs] = [("ours", &logits), ("theirs", &off)].map(|(name, numbers)| {
            let path = folder.path().join(name);
            write_safetensors(&path, &[NamedTensor::from_f32("classes.3", [4], numbers).unwrap()]).unwrap();
            path
        });
        let answer: Answer =
            serde_json::from_str(r#"{"protocol":1,"framework":"x","version":"1","step_ms":[],"window_s":1.0}"#)
                .unwrap();
        let reference = Reference { answer: &answer, outputs: &ours };
        let check = compare(&groups(DetectorOutputs::Network), reference, &answer, &theirs);
        assert_eq!(check.note.unwrap(), "`classes.3` is 1.4e-1 from Bessemer's, 1e-3 are allowed");
        let bf16 = Group { precision: Compute::Bf16, ..groups(DetectorOutputs::Network) };
        assert_eq!(compare(&bf16, reference, &answer, &theirs).verdict, Verdict::Same);
    }

    #[test]
    fn detections_must_be_near() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |file: &str, side: f32, score: f32| {
            detections::tests::write(&path(file), &[([0.0, 0.0, side, 10.0], score, 2.0)]);
        };
        write("ours", 10.0, 0.01);
        write("near", 10.01, 0.010_005);
        write("wider", 11.0, 0.01);
        write("higher", 10.0, 0.010_02);
        let answer: Answer =
            serde_json::from_str(r#"{"protocol":1,"framework":"x","version":"1","step_ms":[],"window_s":1.0}"#)
                .unwrap();
        let (outputs, group) = (path("ours"), group("efficientdet-d0"));
        let reference = Reference { answer: &answer, outputs: &outputs };
        let check = |file: &str| compare(&group, reference, &answer, &path(file));
        let near = check("near");
        assert_eq!((near.verdict, near.later, near.note), (Verdict::Same, Some(0.0), None));
        for (file, expected) in [
            ("wider", "100.0 % of the detections have no partner among Bessemer's, 2.0 % are allowed"),
            ("higher", "its scores are 2.0e-3 from Bessemer's, 1e-3 are allowed"),
            ("absent", "absent"),
        ] {
            let check = check(file);
            assert_eq!(check.verdict, Verdict::Different);
            assert!(check.note.as_ref().unwrap().contains(expected), "{check:?}");
        }
        let rows = [([0.0, 0.0, 10.0, 10.0], 0.01, 2.0)];
        let masked = |file: &str, mask: [f32; 4]| detections::tests::write_with(&path(file), &rows, Some(&[mask]));
        masked("ours", [0.9, 0.9, 0.9, 0.1]);
        masked("smaller", [0.9, 0.9, 0.1, 0.1]);
        let check = check("smaller");
        assert!(check.verdict == Verdict::Different && (check.masks.unwrap() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(
            check.note.unwrap(),
            "its masks overlap Bessemer's by 66.7 % on average, at least 98.0 % is asked for"
        );
    }
}
