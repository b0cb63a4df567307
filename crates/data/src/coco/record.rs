//! Images with objects as `tf.train.Example` messages, in the layout of TensorFlow's detection models.

use crate::decode::read_info;
use crate::tf_example::picture::{ENCODED, FILE_NAME, FORMAT, HEIGHT, SIDES, WIDTH};
use crate::tf_example::proto::Kind;
use crate::tf_example::{self, Features, Flaw, flaw};

const EXPECTED: &str = "the features of TensorFlow's detection models: image/encoded, image/object/bbox/xmin and so on";
const SOURCE_ID: &str = "image/source_id";
const SHA256: &str = "image/key/sha256";
const CAPTION: &str = "image/caption";
const LABEL: &str = "image/object/class/label";
const TEXT: &str = "image/object/class/text";
const IS_CROWD: &str = "image/object/is_crowd";
const AREA: &str = "image/object/area";
const MASK: &str = "image/object/mask";

/// An image with its objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ImageExample {
    /// `None` where the record has an empty one.
    pub id: Option<i64>,
    /// Height and width in pixels.
    pub size: [u32; 2],
    pub file_name: String,
    /// The image file.
    pub encoded: Vec<u8>,
    pub objects: Vec<ExampleObject>,
    /// Whether there are masks.
    pub has_masks: bool,
}

/// An object of an image.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ExampleObject {
    /// `[x1, y1, x2, y2]` in pixels.
    pub bbox: [f64; 4],
    pub category_id: i64,
    pub category: String,
    pub is_crowd: bool,
    /// In square pixels.
    pub area: f64,
    /// A PNG of the size of the image: 0 or 1. Empty without masks.
    pub mask: Vec<u8>,
}

impl ImageExample {
    /// The message. `format` is the image's, such as `jpeg`; `sha256` that of the file, in hexadecimal.
    pub(super) fn encode(self, format: &str, sha256: String) -> Vec<u8> {
        let Self { id, size: [height, width], file_name, encoded, objects, has_masks } = self;
        let per_object = |value: &dyn Fn(&ExampleObject) -> i64| Kind::integers(objects.iter().map(value).collect());
        let mut features = vec![
            (HEIGHT, Kind::integers(vec![height.into()])),
            (WIDTH, Kind::integers(vec![width.into()])),
            (FILE_NAME, Kind::text(file_name)),
            (SOURCE_ID, Kind::text(id.map_or_else(String::new, |id| id.to_string()))),
            (SHA256, Kind::text(sha256)),
            (FORMAT, Kind::text(format)),
            (LABEL, per_object(&|object| object.category_id)),
            (IS_CROWD, per_object(&|object| object.is_crowd.into())),
            (TEXT, Kind::bytes(objects.iter().map(|object| object.category.clone().into_bytes()).collect())),
            (AREA, Kind::floats(objects.iter().map(|object| object.area as f32).collect())),
        ];
        for (axis, name) in SIDES.into_iter().enumerate() {
            let side = f64::from(if axis % 2 == 0 { width } else { height });
            let share = |object: &ExampleObject| (object.bbox[axis] / side) as f32;
            features.push((name, Kind::floats(objects.iter().map(share).collect())));
        }
        if has_masks {
            features.push((MASK, Kind::bytes(objects.into_iter().map(|object| object.mask).collect())));
        }
        features.push((ENCODED, Kind::bytes(vec![encoded])));
        tf_example::encode(features)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// A feature that is missing, of another type, length or range; a record that has captions but no boxes.
    pub(super) fn decode(payload: &[u8]) -> Result<Self, Flaw> {
        let mut features = Features::parse(payload, EXPECTED)?;
        if !features.has(SIDES[0]) {
            return Err(match features.has(CAPTION) {
                true => flaw(
                    "the record has captions but no boxes: it was made from a file of captions",
                    "records made from instances_*.json (the converter's object annotations)",
                ),
                false => flaw(format!("no feature `{}`", SIDES[0]), EXPECTED),
            });
        }
        let stated = [stated_side(&mut features, HEIGHT)?, stated_side(&mut features, WIDTH)?];
        let id = text(&mut features, SOURCE_ID)?;
        let parsed = if id.is_empty() { Ok(None) } else { id.parse().map(Some) };
        let id = parsed.map_err(|_| flaw(format!("`{SOURCE_ID}` is `{id}`"), "the id of an image"))?;
        let file_name = if features.has(FILE_NAME) { text(&mut features, FILE_NAME)? } else { String::new() };
        let encoded = features.single(ENCODED)?;
        let [height, width] = match stated {
            [Some(height), Some(width)] => [height, width],
            _ => {
                let info = read_info(&encoded).map_err(|error| flaw(format!("the image: {error}"), "a whole image"))?;
                [info.height, info.width]
            }
        };
        let labels = features.ints(&[LABEL])?;
        let count = labels.len();
        let mut sides = [const { Vec::new() }; 4];
        for (values, name) in sides.iter_mut().zip(SIDES) {
            *values = features.floats(&[name], count)?;
        }
        if let Some(bad) = sides.iter().flatten().find(|share| !share.is_finite()) {
            return Err(flaw(format!("a box has the side {bad}"), "shares of the image, 0 to 1"));
        }
        let crowds = match features.has(IS_CROWD) {
            true => features.bounded(&[IS_CROWD], count, 2)?,
            false => vec![0; count],
        };
        let texts = if features.has(TEXT) { features.bytes_list(&[TEXT])? } else { Vec::new() };
        let areas = if features.has(AREA) { features.float_list(&[AREA])? } else { Vec::new() };
        let has_masks = features.has(MASK);
        let mut masks = if has_masks { features.bytes_list(&[MASK])? } else { Vec::new() };
        if has_masks && masks.len() != count {
            return Err(flaw(format!("`{MASK}` has {} values", masks.len()), format!("{count}")));
        }
        let object = |index: usize| {
            let at = |axis: usize, side: u32| f64::from(sides[axis][index]) * f64::from(side);
            let bbox = [at(0, width), at(1, height), at(2, width), at(3, height)];
            let box_area = (bbox[2] - bbox[0]) * (bbox[3] - bbox[1]);
            ExampleObject {
                bbox,
                category_id: labels[index],
                category: texts.get(index).map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default(),
                is_crowd: crowds[index] == 1,
                area: areas.get(index).map_or(box_area, |&area| area.into()),
                mask: masks.get_mut(index).map(std::mem::take).unwrap_or_default(),
            }
        };
        let objects = (0..count).map(object).collect();
        Ok(Self { id, size: [height, width], file_name, encoded, objects, has_masks })
    }
}

/// A side of the image in pixels; `None` for a record that leaves it to the image, by no number or by -1.
fn stated_side(features: &mut Features, name: &'static str) -> Result<Option<u32>, Flaw> {
    if !features.has(name) {
        return Ok(None);
    }
    let side = features.number(name, -1..=crate::MAX_SIDE.into())?;
    match side {
        -1 => Ok(None),
        0 => Err(flaw(format!("`{name}` is [0]"), format!("1 to {}, or -1 for that of the image", crate::MAX_SIDE))),
        side => Ok(Some(side as u32)),
    }
}

fn text(features: &mut Features, name: &'static str) -> Result<String, Flaw> {
    String::from_utf8(features.single(name)?).map_err(|_| flaw(format!("`{name}` is not UTF-8"), "text"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use prost::Message;

    use super::*;
    use crate::tf_example::proto::{BytesList, Example, FloatList, Int64List};
    use crate::{FileFormat, Image};

    fn example() -> ImageExample {
        let object = |x: f64, is_crowd: bool| ExampleObject {
            bbox: [x, 8.0, 24.0, 16.0],
            category_id: 90,
            category: "toothbrush".into(),
            is_crowd,
            area: 12.5,
            mask: vec![1, 2, 3],
        };
        let objects = vec![object(4.0, false), object(8.0, true)];
        ImageExample {
            id: Some(42),
            size: [16, 32],
            file_name: "a.jpg".into(),
            encoded: vec![9; 5],
            objects,
            has_masks: true,
        }
    }

    /// The message with a feature replaced or removed.
    fn changed(name: &str, kind: Option<Kind>) -> Vec<u8> {
        let mut message = Example::decode(&example().encode("jpeg", String::new())[..]).unwrap();
        let features: &mut BTreeMap<_, _> = &mut message.features.as_mut().unwrap().feature;
        match kind {
            Some(kind) => features.insert(name.to_owned(), tf_example::proto::Feature { kind: Some(kind) }),
            None => features.remove(name),
        };
        message.encode_to_vec()
    }

    #[test]
    fn examples_come_back() {
        assert_eq!(ImageExample::decode(&example().encode("jpeg", "ab".into())).unwrap(), example());
        let none = ImageExample { objects: Vec::new(), has_masks: false, ..example() };
        assert_eq!(ImageExample::decode(&none.clone().encode("jpeg", String::new())).unwrap(), none);
    }

    #[test]
    fn an_id_may_be_empty() {
        let empty = Some(Kind::text(String::new()));
        assert_eq!(ImageExample::decode(&changed(SOURCE_ID, empty)).unwrap(), ImageExample { id: None, ..example() });
    }

    #[test]
    fn optional_features_may_be_absent() {
        let area = ImageExample::decode(&changed(AREA, None)).unwrap().objects[0].area;
        assert_eq!(area, 20.0 * 8.0, "that of the box");
        assert!(!ImageExample::decode(&changed(IS_CROWD, None)).unwrap().objects[1].is_crowd);
        assert!(!ImageExample::decode(&changed(MASK, None)).unwrap().has_masks);
    }

    #[test]
    fn sizes_may_be_left_to_the_image() {
        let ints = |value: i64| Some(Kind::integers(vec![value]));
        for (name, kind) in [(HEIGHT, ints(-1)), (WIDTH, None)] {
            let error = ImageExample::decode(&changed(name, kind.clone())).unwrap_err();
            assert!(error.problem.starts_with("the image: "), "{}", error.problem);
            let image = Image::filled(32, 16, [7; 3]).encode(Path::new("a.png"), FileFormat::Png).unwrap();
            let mut message = Example::decode(&changed(name, kind)[..]).unwrap();
            let features = &mut message.features.as_mut().unwrap().feature;
            let file = tf_example::proto::Feature { kind: Some(Kind::bytes(vec![image.clone()])) };
            features.insert(ENCODED.to_owned(), file);
            let found = ImageExample::decode(&message.encode_to_vec()).unwrap();
            assert_eq!(found, ImageExample { encoded: image, ..example() });
        }
    }

    #[test]
    fn captions_without_boxes_are_refused_with_the_reason() {
        let caption = vec![(CAPTION, Kind::Bytes(BytesList { value: vec![b"a dog".to_vec()] }))];
        let problem = ImageExample::decode(&tf_example::encode(caption)).unwrap_err();
        assert!(problem.problem.contains("captions but no boxes") && problem.expected.contains("instances_*.json"));
        assert!(ImageExample::decode(&changed(SIDES[0], None)).unwrap_err().problem.contains("bbox/xmin"));
    }

    #[test]
    fn features_that_do_not_fit_are_named() {
        let ints = |value: &[i64]| Some(Kind::Int64(Int64List { value: value.to_vec() }));
        let floats = |value: &[f32]| Some(Kind::Float(FloatList { value: value.to_vec() }));
        let bytes =
            |value: &[&[u8]]| Some(Kind::Bytes(BytesList { value: value.iter().map(|v| v.to_vec()).collect() }));
        for (name, kind, expected) in [
            (HEIGHT, ints(&[0]), "`image/height` is [0]"),
            (WIDTH, ints(&[]), "`image/width` is []"),
            (SOURCE_ID, bytes(&[b"x1"]), "`image/source_id` is `x1`"),
            (ENCODED, bytes(&[]), "`image/encoded` has 0 values"),
            (ENCODED, ints(&[1]), "`image/encoded` is no list of bytes"),
            (SIDES[2], floats(&[0.5]), "`image/object/bbox/xmax` has 1 values"),
            (SIDES[2], floats(&[0.5, f32::NAN]), "a box has the side NaN"),
            (IS_CROWD, ints(&[0, 2]), "`image/object/is_crowd` has 2"),
            (MASK, bytes(&[b""]), "`image/object/mask` has 1 values"),
        ] {
            let found = ImageExample::decode(&changed(name, kind)).unwrap_err();
            assert!(found.problem.contains(expected), "{name}: {}", found.problem);
        }
    }
}
