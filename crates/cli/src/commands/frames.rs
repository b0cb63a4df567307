//! Pictures of a stream, one after another, drawn in by a model.

use super::infer::{Lines, Options};
use crate::args::Common;
use crate::failure::{Coded, INTERRUPTED, Usage, named};
use anyhow::bail;
use bessemer_data::ImageStream;
use bessemer_train::tasks::frames::{FrameOutput, annotate_frames};
use bessemer_train::tasks::infer::{PredictOptions, Prediction};
use bessemer_train::{StopSignal, TrainError};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::Path;

/// Draws in the pictures of a file or of standard input. Tables, JSON objects, a line each, or rows of CSV go to standard output, or to
/// standard error where pictures go there.
pub(super) fn run(frames: &Path, weights: &Path, options: &Options, common: &Common) -> anyhow::Result<()> {
    let settings = PredictOptions { out: None, ..options.settings(common)? };
    let (family, name) = (options.model.family(), options.model.name());
    let annotator = family.annotator(name, weights, &settings).map_err(|error| named(error, name))?;
    let Some(mut annotator) = annotator else {
        bail!(Usage(format!("--frames is for models that detect objects, not for {}", options.model.name())));
    };
    let to_stream = options.out.as_deref().is_some_and(is_standard);
    if to_stream && io::stdout().is_terminal() {
        bail!(Usage("--out - writes pictures to standard output, which is a terminal: redirect it".to_owned()));
    }
    let (name, input): (&Path, Box<dyn BufRead>) = match is_standard(frames) {
        true => (Path::new("standard input"), Box::new(io::stdin().lock())),
        false => {
            let cannot = |error| Usage(format!("{}: cannot open the pictures: {error}", frames.display()));
            (frames, Box::new(BufReader::new(File::open(frames).map_err(cannot)?)))
        }
    };
    let mut stdout = io::stdout().lock();
    let output = match &options.out {
        None => FrameOutput::Nowhere,
        Some(_) if to_stream => FrameOutput::Stream(&mut stdout),
        Some(folder) => FrameOutput::Folder(folder.clone()),
    };
    let mut lines = Lines::new(options.form());
    let mut show = |prediction: &Prediction| {
        let text = lines.of(prediction).map_err(io::Error::other)?;
        match to_stream {
            true if common.quiet => Ok(()),
            true => io::stderr().write_all(text.as_bytes()),
            false => io::stdout().write_all(text.as_bytes()),
        }
    };
    let stop = StopSignal::from_system(None)?;
    let frames = ImageStream::new(input, name, settings.orientation());
    match annotate_frames(&mut *annotator, frames, output, &stop, &mut show) {
        // The program that makes the pictures is interrupted too, maybe within one of them.
        Ok(_) | Err(TrainError::Data(_)) if stop.is_raised() => {
            let message = "interrupted; the pictures before are complete".to_owned();
            bail!(Coded { code: INTERRUPTED, message })
        }
        result => Ok(result.map(|_| ())?),
    }
}

/// Whether a path stands for standard input or standard output.
pub(super) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}
