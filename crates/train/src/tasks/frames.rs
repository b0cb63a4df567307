//! Streams of pictures into which a model draws what it sees, such as the frames of a video.

use super::infer::{JPEG_QUALITY, Prediction, RESULTS_FILE};
use crate::error::TrainError;
use crate::signals::StopSignal;
use bessemer_data::coco::{ResultRecord, ResultsWriter};
use bessemer_data::{FileFormat, Image, ImageStream};
use std::fs;
use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Names of drawn pictures, around their numbers.
const FRAME_PREFIX: &str = "frame-";
const FRAME_ENDING: &str = ".jpg";

/// A model that draws what it sees.
pub trait Annotator {
    /// What is in an image; `name` and `id` are those of the image in results.
    ///
    /// # Errors
    /// Outputs that are not numbers.
    fn annotate(&mut self, image: &Image, name: &str, id: i64) -> Result<Annotated, TrainError>;
}

/// An image with what was seen in it.
#[derive(Clone, Debug)]
pub struct Annotated {
    /// The image, drawn in.
    pub picture: Image,
    /// For people and programs.
    pub prediction: Prediction,
    /// For a results file.
    pub records: Vec<ResultRecord>,
}

/// Where drawn pictures go.
pub enum FrameOutput<'a> {
    /// They are not kept.
    Nowhere,
    /// `frame-NNNNNN.jpg` and a results file in a folder, which is made.
    Folder(PathBuf),
    /// JPEG files one after another.
    Stream(&'a mut dyn Write),
}

/// Annotates each picture of a stream, JPEG or PNG, before the next one is read, and hands its prediction to `each`; how many
/// there were. The end of the stream, a raised `stop`, and a reader of `output` or of what `each` writes that has gone end it.
///
/// # Errors
/// A picture that is truncated or damaged, after those before it were written; a stream without any; an output that cannot be
/// written; the file of the stream, if it has a name that is written.
pub fn annotate_frames(
    annotator: &mut dyn Annotator,
    mut frames: ImageStream<impl BufRead>,
    output: FrameOutput<'_>,
    stop: &StopSignal,
    each: &mut dyn FnMut(&Prediction) -> io::Result<()>,
) -> Result<u64, TrainError> {
    if let FrameOutput::Folder(folder) = &output {
        check_names(folder, frames.name())?;
    }
    let mut output = Opened::new(output)?;
    let mut next = || {
        let mut count = 0;
        while !stop.is_raised()
            && let Some(image) = frames.next_image()?
        {
            let file = format!("{FRAME_PREFIX}{:06}{FRAME_ENDING}", count + 1);
            let annotated = annotator.annotate(&image, &file, count as i64 + 1)?;
            let written = output.write(&annotated, &file)?.and_then(|()| each(&annotated.prediction));
            match written {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                result => result.map_err(TrainError::io(Path::new("the output"), "write what was found"))?,
            }
            count += 1;
        }
        Ok(count)
    };
    let count = next();
    output.finish()?;
    count
}

/// # Errors
/// A stream that is a file of this folder with a name that is written.
fn check_names(folder: &Path, stream: &Path) -> Result<(), TrainError> {
    let (Ok(file), Ok(real)) = (fs::canonicalize(stream), fs::canonicalize(folder)) else { return Ok(()) };
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_written = name == RESULTS_FILE || name.starts_with(FRAME_PREFIX) && name.ends_with(FRAME_ENDING);
    if file.parent() != Some(&real) || !is_written {
        return Ok(());
    }
    let allowed = format!("the input {} could be overwritten; name another folder", stream.display());
    Err(TrainError::setting("the folder of pictures", folder.display(), allowed))
}

/// An output that is written to.
enum Opened<'a> {
    Nowhere,
    Folder(PathBuf, ResultsWriter),
    Stream(&'a mut dyn Write),
}

impl<'a> Opened<'a> {
    fn new(output: FrameOutput<'a>) -> Result<Self, TrainError> {
        Ok(match output {
            FrameOutput::Nowhere => Self::Nowhere,
            FrameOutput::Folder(folder) => {
                fs::create_dir_all(&folder).map_err(TrainError::io(&folder, "make the folder of pictures"))?;
                let results = ResultsWriter::create(&folder.join(RESULTS_FILE))?;
                Self::Folder(folder, results)
            }
            FrameOutput::Stream(stream) => Self::Stream(stream),
        })
    }

    /// Whether the stream took the picture.
    fn write(&mut self, annotated: &Annotated, file: &str) -> Result<io::Result<()>, TrainError> {
        let format = FileFormat::Jpeg(JPEG_QUALITY);
        match self {
            Self::Nowhere => {}
            Self::Folder(folder, results) => {
                annotated.picture.write(&folder.join(file), format)?;
                annotated.records.iter().try_for_each(|record| results.write(record))?;
            }
            Self::Stream(stream) => {
                let bytes = annotated.picture.encode(Path::new(file), format)?;
                return Ok(stream.write_all(&bytes).and_then(|()| stream.flush()));
            }
        }
        Ok(Ok(()))
    }

    fn finish(self) -> Result<(), TrainError> {
        match self {
            Self::Folder(_, results) => Ok(results.finish()?),
            Self::Nowhere | Self::Stream(_) => Ok(()),
        }
    }
}
