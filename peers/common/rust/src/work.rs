//! The work folder.

use crate::files::{Array, Tensors};
use crate::request::at;
use crate::{Family, Request, Result, Sizes, Text, Training};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// Weights, batches and settings.
pub struct Work {
    pub family: Family,
    pub sizes: Sizes,
    pub training: Training,
    /// Share of elements that training drops.
    pub dropout: f64,
    pub batches: usize,
    normalise: Option<Normalise>,
    /// By name, with running statistics.
    weights: BTreeMap<String, Array>,
    feeds: Tensors,
}

/// `work.json`
#[derive(Deserialize)]
struct Description {
    model: String,
    batch_size: usize,
    batches: usize,
    sizes: Value,
    normalise: Option<Normalise>,
    training: Training,
}

/// Of bytes, for each colour.
#[derive(Deserialize)]
struct Normalise {
    mean: [f32; 3],
    std: [f32; 3],
}

/// Projections that are made one, in this order.
const PROJECTIONS: [&str; 3] = ["query", "key", "value"];

impl Work {
    /// The work of a request.
    ///
    /// # Errors
    /// A folder that cannot be read or is of other work; a model that peers do not know.
    pub(crate) fn read(request: &Request) -> Result<Self> {
        let path = request.work.join("work.json");
        let text = fs::read_to_string(&path).map_err(|error| at(&path, error))?;
        let known: Description = serde_json::from_str(&text).map_err(|error| at(&path, error))?;
        if (&known.model, known.batch_size) != (&request.model, request.batch_size) {
            let Description { model, batch_size, .. } = known;
            let asked = format!("{} in batches of {}", request.model, request.batch_size);
            return Err(at(&path, format!("{model} in batches of {batch_size}, not {asked}")).into());
        }
        let family = Family::of(&known.model)?;
        let is_dropped = request.trains() && !request.checks();
        Ok(Self {
            family,
            sizes: Sizes::read(family, known.sizes)?,
            dropout: if is_dropped { known.training.dropout } else { 0.0 },
            training: known.training,
            batches: known.batches,
            normalise: known.normalise,
            weights: Tensors::read(&request.work.join("weights.safetensors"))?.into_floats()?,
            feeds: Tensors::read(&request.work.join("batches.safetensors"))?,
        })
    }

    /// Takes the weights out: those of a ResNet as they are in the file, those of a text model with one projection in
    /// place of queries, keys and values, `...attention.self.projections`, whose rows are theirs in this order.
    pub fn take_weights(&mut self) -> Result<BTreeMap<String, Array>> {
        let mut weights = std::mem::take(&mut self.weights);
        if let Sizes::Text(sizes) = &self.sizes {
            join_projections(&mut weights, self.family, sizes)?;
        }
        Ok(weights)
    }

    /// Pictures `[N, 3, H, W]` of each batch, normalised.
    pub fn images(&self) -> Result<Vec<Array>> {
        let normalise = self.normalise.as_ref().ok_or("the work has no `normalise`")?;
        Ok(self.feeds.bytes("images")?.split().iter().map(|images| normalise.planes(images)).collect())
    }

    /// Integers of each batch by name.
    pub fn integers(&self, name: &str) -> Result<Vec<Array<i32>>> {
        Ok(self.feeds.integers(name)?.split())
    }

    /// Numbers of each batch by name.
    pub fn floats(&self, name: &str) -> Result<Vec<Array>> {
        Ok(self.feeds.floats(name)?.split())
    }
}

/// Whether a tensor is moved by batch norms, not trained.
pub fn is_statistic(name: &str) -> bool {
    name.ends_with("running_mean") || name.ends_with("running_var")
}

impl Normalise {
    /// `[N, H, W, 3]` to `[N, 3, H, W]`
    fn planes(&self, images: &Array<u8>) -> Array {
        let &[count, height, width, channels] = images.shape.as_slice() else {
            unreachable!("pictures have four axes");
        };
        let mut values = vec![0.0; images.values.len()];
        let size = height * width;
        for (image, planes) in images.values.chunks(channels * size).zip(values.chunks_mut(channels * size)) {
            for (channel, plane) in planes.chunks_mut(size).enumerate() {
                let (mean, std) = (self.mean[channel], self.std[channel]);
                for (value, pixel) in plane.iter_mut().zip(image.chunks(channels)) {
                    *value = (f32::from(pixel[channel]) - mean) / std;
                }
            }
        }
        Array { shape: vec![count, channels, height, width], values }
    }
}

fn join_projections(weights: &mut BTreeMap<String, Array>, family: Family, sizes: &Text) -> Result<()> {
    for layer in 0..sizes.num_hidden_layers {
        let attention = format!("{}.encoder.layer.{layer}.attention.self", family.trunk());
        for kind in ["weight", "bias"] {
            let mut joined = Array { shape: Vec::new(), values: Vec::new() };
            for part in PROJECTIONS {
                let name = format!("{attention}.{part}.{kind}");
                let part = weights.remove(&name).ok_or_else(|| format!("there is no weight `{name}`"))?;
                joined.values.extend(part.values);
                joined.shape = part.shape;
            }
            joined.shape[0] *= PROJECTIONS.len();
            weights.insert(format!("{attention}.projections.{kind}"), joined);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_normalised_plane_by_plane() {
        let normalise = Normalise { mean: [1.0, 2.0, 3.0], std: [1.0, 2.0, 4.0] };
        let images = Array { shape: vec![1, 1, 2, 3], values: vec![1, 2, 3, 5, 6, 7] };
        let planes = normalise.planes(&images);
        assert_eq!(planes, Array { shape: vec![1, 3, 1, 2], values: vec![0.0, 4.0, 0.0, 2.0, 0.0, 1.0] });
    }

    #[test]
    fn rows_of_projections_are_joined_in_order() {
        let name = |part: &str, kind: &str| format!("bert.encoder.layer.0.attention.self.{part}.{kind}");
        let mut weights = BTreeMap::new();
        for (index, part) in PROJECTIONS.iter().enumerate() {
            let value = index as f32;
            weights.insert(name(part, "weight"), Array { shape: vec![1, 2], values: vec![value; 2] });
            weights.insert(name(part, "bias"), Array { shape: vec![1], values: vec![value] });
        }
        let sizes = serde_json::json!({"hidden_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1,
            "layer_norm_eps": 1e-12, "hidden_act": "gelu"});
        join_projections(&mut weights, Family::Bert, &serde_json::from_value(sizes).unwrap()).unwrap();
        let expected = Array { shape: vec![3, 2], values: vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0] };
        assert_eq!(weights[&name("projections", "weight")], expected);
        assert_eq!(weights[&name("projections", "bias")].values, [0.0, 1.0, 2.0]);
        assert_eq!(weights.len(), 2);
    }
}
