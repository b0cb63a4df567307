//! TensorBoard event files: TFRecord framing around `Event` protocol buffers
//! (`tensorflow/core/util/event.proto`, `tensorflow/core/framework/summary.proto`).

use crate::events::{EvalInfo, Event, EventBody, StepInfo};
use bessemer_data::tfrecord::frame;
use prost::Message;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

const FILE_VERSION: &str = "brain.Event:2";
const SESSION_START: i32 = 1;
const RGB: i32 = 3;

mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Event {
        #[prost(double, tag = "1")]
        pub wall_time: f64,
        #[prost(int64, tag = "2")]
        pub step: i64,
        #[prost(oneof = "What", tags = "3, 5, 7")]
        pub what: Option<What>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum What {
        #[prost(string, tag = "3")]
        FileVersion(String),
        #[prost(message, tag = "5")]
        Summary(Summary),
        #[prost(message, tag = "7")]
        SessionLog(SessionLog),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SessionLog {
        #[prost(int32, tag = "1")]
        pub status: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Summary {
        #[prost(message, repeated, tag = "1")]
        pub value: Vec<Value>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Value {
        #[prost(string, tag = "1")]
        pub tag: String,
        #[prost(oneof = "Content", tags = "2, 4")]
        pub content: Option<Content>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Content {
        #[prost(float, tag = "2")]
        SimpleValue(f32),
        #[prost(message, tag = "4")]
        Image(Image),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Image {
        #[prost(int32, tag = "1")]
        pub height: i32,
        #[prost(int32, tag = "2")]
        pub width: i32,
        #[prost(int32, tag = "3")]
        pub colorspace: i32,
        #[prost(bytes = "vec", tag = "4")]
        pub encoded_image_string: Vec<u8>,
    }
}

use proto::What;

/// Writes one event file, each record at once.
#[derive(Debug)]
pub struct TensorBoardWriter<W> {
    sink: W,
}

impl TensorBoardWriter<File> {
    /// Starts a new file in `folder`, which is created if needed.
    ///
    /// # Errors
    /// A folder or file that cannot be created.
    pub fn create(folder: &Path, time: f64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        for number in 0.. {
            let process = std::process::id();
            let path = folder.join(format!("events.out.tfevents.{:010}.{host}.{process}.{number}", time as u64));
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(file) => return Self::new(file, time),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
        }
        unreachable!("the numbers do not end")
    }
}

impl<W: Write> TensorBoardWriter<W> {
    /// Starts a stream with its version record.
    ///
    /// # Errors
    /// A failure of the sink.
    pub fn new(sink: W, time: f64) -> io::Result<Self> {
        let mut writer = Self { sink };
        writer.record(time, 0, What::FileVersion(FILE_VERSION.to_owned()))?;
        Ok(writer)
    }

    /// Informs readers that `step` starts over: events of older files from there on are superseded.
    ///
    /// # Errors
    /// A failure of the sink.
    pub fn restart_at(&mut self, time: f64, step: u64) -> io::Result<()> {
        self.record(time, step, What::SessionLog(proto::SessionLog { status: SESSION_START }))
    }

    /// Writes what `event` means as scalars: `train/...` for steps, `val/...` for evaluations.
    ///
    /// # Errors
    /// A failure of the sink.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        let scalars = match &event.body {
            EventBody::Step(info) => step_scalars(info),
            EventBody::Eval(info) => eval_scalars(info),
            _ => return Ok(()),
        };
        let value = scalars.into_iter().map(|(tag, value)| scalar(tag, value)).collect();
        let step = event.header.step.unwrap_or_default();
        self.record(event.header.time, step, What::Summary(proto::Summary { value }))
    }

    /// Writes a PNG image.
    ///
    /// # Errors
    /// Bytes that are not a PNG image, or a failure of the sink.
    pub fn image(&mut self, time: f64, step: u64, tag: &str, png: &[u8]) -> io::Result<()> {
        let (width, height) = png_size(png).ok_or_else(|| io::Error::other(format!("image `{tag}` is not a PNG")))?;
        let image = proto::Image { height, width, colorspace: RGB, encoded_image_string: png.to_vec() };
        let value = proto::Value { tag: tag.to_owned(), content: Some(proto::Content::Image(image)) };
        self.record(time, step, What::Summary(proto::Summary { value: vec![value] }))
    }

    fn record(&mut self, wall_time: f64, step: u64, what: What) -> io::Result<()> {
        let payload = proto::Event { wall_time, step: step as i64, what: Some(what) }.encode_to_vec();
        self.sink.write_all(&frame(&payload))
    }
}

fn scalar(tag: String, value: f64) -> proto::Value {
    proto::Value { tag, content: Some(proto::Content::SimpleValue(value as f32)) }
}

fn step_scalars(info: &StepInfo) -> Vec<(String, f64)> {
    let rate = info.samples as f64 / info.step_s;
    let always = [("train/loss", info.loss), ("train/lr", info.lr), ("train/samples_per_s", rate)];
    let sometimes = [("train/grad_norm", info.grad_norm), ("train/loss_scale", info.loss_scale)];
    let parts = info.parts.iter().map(|(name, value)| (format!("train/{name}"), *value));
    let named = always.into_iter().chain(sometimes.into_iter().filter_map(|(tag, value)| Some((tag, value?))));
    named.map(|(tag, value)| (tag.to_owned(), value)).chain(parts).collect()
}

fn eval_scalars(info: &EvalInfo) -> Vec<(String, f64)> {
    info.metrics.iter().map(|(name, value)| (format!("val/{name}"), *value)).collect()
}

/// Width and height from the header of a PNG image.
fn png_size(png: &[u8]) -> Option<(i32, i32)> {
    let header = png.strip_prefix(b"\x89PNG\r\n\x1a\n")?.get(4..)?.strip_prefix(b"IHDR")?;
    let field = |at: usize| Some(i32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    Some((field(0)?, field(4)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Header;
    use bessemer_data::tfrecord::masked_crc;

    /// Reads a stream of records, checking both checksums of each.
    fn read(mut bytes: &[u8]) -> Vec<proto::Event> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_at(8);
            let (length_crc, rest) = rest.split_at(4);
            assert_eq!(length_crc, masked_crc(length).to_le_bytes());
            let (payload, rest) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
            let (payload_crc, rest) = rest.split_at(4);
            assert_eq!(payload_crc, masked_crc(payload).to_le_bytes());
            events.push(proto::Event::decode(payload).unwrap());
            bytes = rest;
        }
        events
    }

    fn scalars(event: &proto::Event) -> Vec<(String, f32)> {
        let Some(What::Summary(summary)) = &event.what else { panic!("{event:?} is not a summary") };
        let value = |v: &proto::Value| match v.content {
            Some(proto::Content::SimpleValue(value)) => (v.tag.clone(), value),
            _ => panic!("{v:?} is not a scalar"),
        };
        summary.value.iter().map(value).collect()
    }

    #[test]
    fn scalars_come_back() {
        let header = Header { time: 12.5, step: Some(40), ..Default::default() };
        let parts = [("box_loss".to_owned(), 0.5)].into();
        let step = StepInfo {
            loss: 2.0,
            lr: 0.25,
            samples: 32,
            step_s: 0.5,
            grad_norm: Some(3.0),
            parts,
            ..Default::default()
        };
        let eval = EvalInfo { metrics: [("top1".to_owned(), 0.75)].into(), ..Default::default() };
        let mut writer = TensorBoardWriter::new(Vec::new(), 12.0).unwrap();
        writer.write(&Event::new(header, step)).unwrap();
        writer.write(&Event::new(header, eval)).unwrap();
        writer.restart_at(13.0, 41).unwrap();

        let events = read(&writer.sink);
        assert_eq!(events[0].what, Some(What::FileVersion("brain.Event:2".to_owned())));
        assert_eq!((events[1].wall_time, events[1].step), (12.5, 40));
        let expected = [
            ("train/loss", 2.0),
            ("train/lr", 0.25),
            ("train/samples_per_s", 64.0),
            ("train/grad_norm", 3.0),
            ("train/box_loss", 0.5),
        ];
        assert_eq!(scalars(&events[1]), expected.map(|(tag, value)| (tag.to_owned(), value)));
        assert_eq!(scalars(&events[2]), [("val/top1".to_owned(), 0.75)]);
        assert_eq!((events[3].step, &events[3].what), (41, &Some(What::SessionLog(proto::SessionLog { status: 1 }))));
    }

    #[test]
    fn images_carry_their_size() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        png.extend([0, 0, 1, 0, 0, 0, 0, 2, 8, 2, 0, 0, 0]);
        let mut writer = TensorBoardWriter::new(Vec::new(), 0.0).unwrap();
        writer.image(1.0, 5, "val/examples", &png).unwrap();
        let Some(What::Summary(summary)) = &read(&writer.sink)[1].what else { panic!("no summary") };
        let Some(proto::Content::Image(image)) = &summary.value[0].content else { panic!("no image") };
        assert_eq!((image.width, image.height, &image.encoded_image_string), (256, 2, &png));
        assert!(writer.image(1.0, 5, "x", b"GIF89a").unwrap_err().to_string().contains("`x` is not a PNG"));
    }

    #[test]
    fn files_of_one_second_do_not_collide() {
        let folder = tempfile::TempDir::new().unwrap();
        let nested = folder.path().join("tensorboard");
        TensorBoardWriter::create(&nested, 5.0).unwrap();
        TensorBoardWriter::create(&nested, 5.0).unwrap();
        assert_eq!(fs::read_dir(nested).unwrap().count(), 2);
    }
}
