use super::{Event, VERSION};
use bessemer_data::NewFile;
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// Why a log of events cannot be read or written.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: line {line}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: String },
}

/// Appends events to a file, each as one whole line handed to the system at once.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

/// What an [`EventWriter::resume`] found.
#[derive(Debug)]
pub struct Resumed {
    /// Appends behind the events that were kept.
    pub writer: EventWriter,
    /// The events that stay, in order.
    pub kept: Vec<Event>,
    /// Events after the resumed step that were dropped; they will be written again.
    pub dropped: usize,
    /// Lines that are not events (by number, from 1) and were dropped.
    pub damaged: Vec<usize>,
}

impl EventWriter {
    /// Starts a file that must not exist.
    ///
    /// # Errors
    /// A file that exists already or cannot be created.
    pub fn create(path: &Path) -> Result<Self, EventError> {
        let file = OpenOptions::new().append(true).create_new(true).open(path).map_err(at(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Continues a file from a checkpoint: a line cut short and events after `step` are removed.
    ///
    /// # Errors
    /// A file that cannot be read or replaced.
    pub fn resume(path: &Path, step: u64) -> Result<Resumed, EventError> {
        let old = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(at(path))?;
        let (mut kept, mut dropped, mut damaged) = (Vec::new(), 0, Vec::new());
        for (index, line) in BufReader::new(old).split(b'\n').enumerate() {
            match serde_json::from_slice::<Event>(&line.map_err(at(path))?) {
                Ok(event) if event.header.step.is_none_or(|other| other <= step) => kept.push(event),
                Ok(_) => dropped += 1,
                Err(_) => damaged.push(index + 1),
            }
        }
        let writer = Self::rewrite(path, &kept)?;
        Ok(Resumed { writer, kept, dropped, damaged })
    }

    /// Appends one event and returns its line, without the line end.
    ///
    /// # Errors
    /// A full disk or another failure to write.
    pub fn write(&mut self, event: &Event) -> Result<String, EventError> {
        let mut line = to_line(event);
        self.file.write_all(line.as_bytes()).map_err(at(&self.path))?;
        line.pop();
        Ok(line)
    }

    /// Returns when everything written is durable.
    ///
    /// # Errors
    /// A failure to write.
    pub fn sync(&self) -> Result<(), EventError> {
        self.file.sync_data().map_err(at(&self.path))
    }

    /// Replaces the file at once by one that holds `events`.
    fn rewrite(path: &Path, events: &[Event]) -> Result<Self, EventError> {
        let beside = path.with_extension("jsonl.new");
        let mut new = NewFile::create(path, &beside).map_err(at(&beside))?;
        let written = events.iter().try_for_each(|event| new.write_all(to_line(event).as_bytes()));
        written.and_then(|()| new.sync()).map_err(at(&beside))?;
        let file = new.place().map_err(at(path))?;
        Ok(Self { file, path: path.to_owned() })
    }
}

/// All events of a file. A last line without its end is still being written and is left out.
///
/// # Errors
/// An unreadable file; a line that is not an event of a version this program knows, by number.
pub fn read_events(path: &Path) -> Result<Vec<Event>, EventError> {
    read_lines(path)?.into_iter().collect()
}

/// The events of a file as [`read_events`] has them, without the lines that are none, of which it says what they are.
///
/// # Errors
/// An unreadable file; the first line, where not one is an event.
pub fn read_sound_events(path: &Path) -> Result<(Vec<Event>, Vec<EventError>), EventError> {
    let (mut events, mut damaged) = (Vec::new(), Vec::new());
    for line in read_lines(path)? {
        match line {
            Ok(event) => events.push(event),
            Err(error) => damaged.push(error),
        }
    }
    if events.is_empty() && !damaged.is_empty() {
        return Err(damaged.swap_remove(0));
    }
    Ok((events, damaged))
}

/// What is in each line.
fn read_lines(path: &Path) -> Result<Vec<Result<Event, EventError>>, EventError> {
    let mut reader = BufReader::new(File::open(path).map_err(at(path))?);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line).map_err(at(path))?;
        if line.last() != Some(&b'\n') {
            return Ok(lines);
        }
        let number = lines.len() + 1;
        lines.push(parse(&line).map_err(|problem| EventError::Line { path: path.to_owned(), line: number, problem }));
    }
}

fn parse(line: &[u8]) -> Result<Event, String> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u32,
    }
    let not_valid = |error: serde_json::Error| format!("not an event: {error}");
    let Versioned { v } = serde_json::from_slice(line).map_err(not_valid)?;
    if v != VERSION {
        return Err(format!("event format {v}; this program reads format {VERSION}"));
    }
    serde_json::from_slice(line).map_err(not_valid)
}

fn to_line(event: &Event) -> String {
    let mut line = serde_json::to_string(event).expect("events have string keys and finite numbers");
    line.push('\n');
    line
}

fn at(path: &Path) -> impl Fn(io::Error) -> EventError {
    let path = path.to_owned();
    move |source| EventError::Io { path: path.clone(), source }
}
