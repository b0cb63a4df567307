//! The program of an adapter: reads the request, does the work, answers with a line of JSON.

use crate::files::{self, Array};
use crate::request::{Request, VERSION};
use crate::timing::Timing;
use crate::{Cannot, Done, Family, Framework, Result, Work, memory};
use serde_json::{Map, Value, json};
use std::env;
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Exit status of what is known to be impossible.
const CANNOT: u8 = 3;
/// Sizes the thread pools of the frameworks, which read it once.
const THREADS_VARIABLE: &str = "RAYON_NUM_THREADS";

/// Does what the arguments ask for, and tells the exit status.
pub fn main<F: Framework>() -> ExitCode {
    panic::set_hook(Box::new(|panic| fail(panic.payload_as_str().unwrap_or("it panicked"))));
    let words: Vec<String> = env::args().skip(1).collect();
    match answer_to::<F>(&words) {
        Ok(mut answer) => {
            answer.insert("protocol".to_owned(), VERSION.into());
            println!("{}", Value::Object(answer));
            ExitCode::SUCCESS
        }
        Err(error) => {
            fail(&error.to_string());
            if error.is::<Cannot>() { ExitCode::from(CANNOT) } else { ExitCode::FAILURE }
        }
    }
}

/// Tells a reason on one line.
fn fail(reason: &str) {
    eprintln!("error: {}", reason.lines().next().unwrap_or_default());
}

type Answer = Map<String, Value>;

fn answer_to<F: Framework>(words: &[String]) -> Result<Answer> {
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["describe"] => {
            let mut answer = about::<F>();
            answer.insert("variants".to_owned(), json!(F::VARIANTS));
            answer.insert("work".to_owned(), json!(F::offers()));
            Ok(answer)
        }
        ["prepare", path] => {
            check_offer::<F>(&Request::read(Path::new(path))?)?;
            Ok(Answer::new())
        }
        ["run", path] => {
            let request = Request::read(Path::new(path))?;
            check_offer::<F>(&request)?;
            keep_to(request.threads)?;
            run::<F>(request)
        }
        _ => Cannot::because("usage: adapter describe | prepare REQUEST.json | run REQUEST.json"),
    }
}

fn about<F: Framework>() -> Answer {
    [("framework".to_owned(), F::NAME.into()), ("version".to_owned(), F::version().into())].into_iter().collect()
}

/// # Errors
/// What the framework does not offer.
fn check_offer<F: Framework>(request: &Request) -> Result<()> {
    let Request { variant, model, precision, .. } = request;
    let family = Family::of(model)?.model();
    let offer = F::offers().into_iter().find(|offer| offer.model == family && offer.mode == request.mode);
    if !F::VARIANTS.iter().any(|known| known.name == variant) {
        return Cannot::because(format!("{} has no variant {variant}", F::NAME));
    }
    match offer {
        None => Cannot::because(format!("{} does not do this with {model}", F::NAME)),
        Some(offer) if !offer.precisions.contains(&precision.as_str()) => {
            Cannot::because(format!("{} has no {precision} for this", F::NAME))
        }
        Some(_) => Ok(()),
    }
}

/// Starts this program again with the given number of threads for the framework, unless that is how it was started.
fn keep_to(threads: usize) -> Result<()> {
    let threads = threads.to_string();
    if env::var(THREADS_VARIABLE).is_ok_and(|found| found == threads) {
        return Ok(());
    }
    let mut again = Command::new(env::current_exe()?);
    Err(again.args(env::args_os().skip(1)).env(THREADS_VARIABLE, threads).exec().into())
}

fn run<F: Framework>(mut request: Request) -> Result<Answer> {
    let import_memory = memory::resident_bytes();
    let work = Work::read(&request)?;
    let (family, batches) = (work.family, work.batches);
    if request.checks() {
        request.warmup = 0;
        request.steps = if request.trains() { request.steps } else { batches };
    }
    let mut prepared = F::prepare(&request, work)?;
    let (mut losses, mut outputs) = (Vec::new(), Vec::new());
    let timing = Timing::of(batches, request.warmup, request.steps, |batch| {
        match (prepared.step)(batch)? {
            Done::Loss(loss) => losses.push(loss),
            Done::Outputs(arrays) if request.checks() => outputs.push(arrays),
            Done::Outputs(_) => {}
        }
        Ok(())
    })?;
    if let Some(path) = request.outputs.filter(|_| !outputs.is_empty()) {
        files::write(&path, &stacked(family, &outputs))?;
    }
    prepared.options.insert("threads".to_owned(), request.threads.into());
    let mut answer = about::<F>();
    let more = json!({
        "options": prepared.options, "step_ms": timing.step_ms(), "window_s": timing.window_s(), "losses": losses,
        "peak_memory_bytes": memory::peak_bytes(), "import_memory_bytes": import_memory,
    });
    let Value::Object(more) = more else { unreachable!("it is written as one") };
    answer.extend(more);
    Ok(answer)
}

/// Outputs of all batches by name, with a first axis of batches.
fn stacked(family: Family, batches: &[Vec<Array>]) -> Vec<(&'static str, Array)> {
    let of_all = |index: usize| {
        let mut shape = vec![batches.len()];
        shape.extend(&batches[0][index].shape);
        let values = batches.iter().flat_map(|arrays| &arrays[index].values).copied().collect();
        Array { shape, values }
    };
    family.outputs().iter().enumerate().map(|(index, name)| (*name, of_all(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_have_a_first_axis_of_batches() {
        let array = |value| Array { shape: vec![2], values: vec![value; 2] };
        let stacked = stacked(Family::Electra, &[vec![array(1.0), array(2.0)], vec![array(3.0), array(4.0)]]);
        assert_eq!(stacked[1], ("end_logits", Array { shape: vec![2, 2], values: vec![2.0, 2.0, 4.0, 4.0] }));
        assert_eq!(stacked[0].0, "start_logits");
    }
}
