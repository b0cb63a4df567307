use std::fmt;

use bessemer_metrics::mask::{MaskError, Merge, Rle};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::fields::FixedList;

/// The mask of an object in the form in which a file has it.
#[derive(Debug, Clone, PartialEq)]
pub enum Segmentation {
    /// One or several polygons `[x0, y0, x1, y1, ...]` in pixels.
    Polygons(Vec<Vec<f64>>),
    /// Run lengths in column-major order.
    Runs {
        /// Height and width of the mask.
        size: [u32; 2],
        /// Run lengths, beginning with background.
        counts: Vec<u32>,
    },
    /// Compressed run lengths.
    Compressed {
        /// Height and width of the mask.
        size: [u32; 2],
        /// Compressed run lengths.
        counts: String,
    },
}

impl Segmentation {
    /// Decodes the mask for an image of that size. The error completes a message that ends with the field's name.
    pub(super) fn mask(&self, height: u32, width: u32) -> Result<Rle, String> {
        let is_of = |size: &[u32; 2]| {
            let [rows, columns] = size;
            if *size == [height, width] {
                Ok(())
            } else {
                Err(format!(".size is [{rows}, {columns}], and the image has height {height} and width {width}"))
            }
        };
        let wrong = |error: MaskError| format!(": {error}");
        match self {
            Self::Polygons(polygons) => {
                let drawn = polygons.iter().enumerate().map(|(number, polygon)| {
                    Rle::from_polygon(height, width, polygon).map_err(|error| format!("[{number}]: {error}"))
                });
                match <[Rle; 1]>::try_from(drawn.collect::<Result<Vec<Rle>, String>>()?) {
                    Ok([mask]) => Ok(mask),
                    Err(masks) if masks.is_empty() => Err(" has no polygon".to_owned()),
                    Err(masks) => Rle::merge(&masks, Merge::Union).map_err(wrong),
                }
            }
            Self::Runs { size, counts } => {
                is_of(size)?;
                Rle::new(height, width, counts.clone()).map_err(wrong)
            }
            Self::Compressed { size, counts } => {
                is_of(size)?;
                Rle::from_compressed(height, width, counts).map_err(wrong)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Segmentation;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of polygons or an object with size and counts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Segmentation, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Segmentation::Polygons)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Segmentation, A::Error> {
                let (mut size, mut counts) = (None, None);
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "size" => size = Some(map.next_value::<FixedList<u32, 2>>()?.0),
                        "counts" => counts = Some(map.next_value::<Counts>()?),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                let size = size.ok_or_else(|| A::Error::missing_field("size"))?;
                match counts.ok_or_else(|| A::Error::missing_field("counts"))? {
                    Counts::Runs(counts) => Ok(Segmentation::Runs { size, counts }),
                    Counts::Compressed(counts) => Ok(Segmentation::Compressed { size, counts }),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}

enum Counts {
    Runs(Vec<u32>),
    Compressed(String),
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of lengths or compressed text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Counts, E> {
                Ok(Counts::Compressed(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Counts, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Counts::Runs)
            }
        }

        deserializer.deserialize_any(Either)
    }
}
