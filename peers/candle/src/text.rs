//! BERT in pre-training, and ELECTRA that answers questions, by Hugging Face's names but for queries, keys and values.

use crate::Model;
use crate::parameters::{Parameters, indices, tensor};
use candle_core::{D, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::ops::{dropout, layer_norm_slow, log_softmax, softmax, softmax_last_dim};
use candle_nn::{Embedding, LayerNorm, Linear};
use peer::{Array, Family};

/// Added to scores of attention to what is padding.
const MASKED_SCORE: f64 = -10_000.0;

/// The network with its batches.
pub(crate) struct Work {
    network: Network,
    batches: Vec<Batch>,
}

struct Batch {
    /// `[N, S]`
    words: Tensor,
    types: Tensor,
    /// Scores of attention, `[N, 1, 1, S]`.
    bias: Tensor,
    targets: Targets,
}

enum Targets {
    Bert {
        /// Rows of the states `[N S, H]` that are predicted, and what they are, `[N P]`.
        rows: Tensor,
        words: Tensor,
        weights: Tensor,
        /// `[N]`
        following: Tensor,
    },
    Electra {
        /// `[N]`
        starts: Tensor,
        ends: Tensor,
    },
}

impl Work {
    pub(crate) fn new(work: &peer::Work, parameters: &Parameters) -> peer::Result<Self> {
        Ok(Self { network: Network::new(work, parameters)?, batches: batches(work)? })
    }
}

impl Model for Work {
    fn loss(&self, batch: usize) -> Result<Tensor> {
        let batch = &self.batches[batch];
        let [first, second] = self.network.outputs(batch, true)?;
        match &batch.targets {
            Targets::Bert { words, weights, following, .. } => {
                let by_word = (cross_entropies(&first, words)? * weights)?.sum_all()?;
                by_word.div(&weights.sum_all()?)? + cross_entropies(&second, following)?.mean_all()?
            }
            Targets::Electra { starts, ends } => {
                let both =
                    (cross_entropies(&first, starts)?.mean_all()? + cross_entropies(&second, ends)?.mean_all()?)?;
                both / 2.0
            }
        }
    }

    fn outputs(&self, batch: usize) -> Result<Vec<Tensor>> {
        let batch = &self.batches[batch];
        let [first, second] = self.network.outputs(batch, false)?;
        let samples = batch.words.dim(0)?;
        let first = match batch.targets {
            Targets::Bert { .. } => first.reshape((samples, (), first.dim(1)?))?,
            Targets::Electra { .. } => first,
        };
        Ok(vec![first, second])
    }
}

/// Of each row of logits `[R, classes]`.
fn cross_entropies(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    log_softmax(logits, 1)?.gather(&labels.unsqueeze(1)?, 1)?.squeeze(1)?.neg()
}

fn batches(work: &peer::Work) -> peer::Result<Vec<Batch>> {
    let of = |name: &str| -> peer::Result<Vec<Tensor>> {
        Ok(work.integers(name)?.into_iter().map(indices).collect::<Result<_>>()?)
    };
    let (words, types, masks) = (of("input_ids")?, of("segment_ids")?, of("input_mask")?);
    let batch = |index: usize, targets| -> Result<Batch> {
        let [words, types, mask] = [&words, &types, &masks].map(|batches| batches[index].clone());
        let kept = mask.to_dtype(DType::F32)?.unsqueeze(1)?.unsqueeze(1)?;
        Ok(Batch { words, types, bias: ((1.0 - kept)? * MASKED_SCORE)?, targets })
    };
    if work.family == Family::Electra {
        let (starts, ends) = (of("start_positions")?, of("end_positions")?);
        let targets = starts.into_iter().zip(ends).map(|(starts, ends)| Targets::Electra { starts, ends });
        return Ok(targets.enumerate().map(|(index, targets)| batch(index, targets)).collect::<Result<_>>()?);
    }
    let (positions, masked, following) =
        (of("masked_lm_positions")?, of("masked_lm_ids")?, of("next_sentence_labels")?);
    let weights = work.floats("masked_lm_weights")?;
    let targets = |(index, weights): (usize, Array)| -> Result<Batch> {
        let length = words[index].dim(1)?;
        let targets = Targets::Bert {
            rows: rows(&positions[index], length)?,
            words: masked[index].flatten_all()?,
            weights: tensor(weights)?.flatten_all()?,
            following: following[index].clone(),
        };
        batch(index, targets)
    };
    Ok(weights.into_iter().enumerate().map(targets).collect::<Result<_>>()?)
}

/// Positions `[N, P]` as rows of `[N S, H]`.
fn rows(positions: &Tensor, length: usize) -> Result<Tensor> {
    let samples = positions.dim(0)?;
    let first: Vec<i64> = (0..samples).map(|sample| (sample * length) as i64).collect();
    positions.broadcast_add(&Tensor::from_vec(first, (samples, 1), &Device::Cpu)?)?.flatten_all()
}

/// What all layers share.
#[derive(Clone, Copy)]
struct Settings {
    heads: usize,
    head_width: usize,
    eps: f64,
    is_tanh_gelu: bool,
    dropout: f32,
}

impl Settings {
    fn gelu(&self, x: &Tensor) -> Result<Tensor> {
        if self.is_tanh_gelu { x.gelu() } else { x.gelu_erf() }
    }

    fn dropped(&self, x: Tensor, trains: bool) -> Result<Tensor> {
        if trains && self.dropout > 0.0 { dropout(&x, self.dropout) } else { Ok(x) }
    }
}

struct Network {
    settings: Settings,
    words: Embedding,
    types: Embedding,
    positions: Tensor,
    norm: Norm,
    projection: Option<Linear>,
    layers: Vec<Layer>,
    head: Head,
}

enum Head {
    Bert {
        pooler: Linear,
        following: Linear,
        transform: Linear,
        norm: Norm,
        /// The table of words, `[V, H]`, and a bias.
        vocabulary: Linear,
    },
    Electra(Linear),
}

impl Network {
    fn new(work: &peer::Work, parameters: &Parameters) -> peer::Result<Self> {
        let peer::Sizes::Text(sizes) = &work.sizes else { unreachable!("the family is of text") };
        let settings = Settings {
            heads: sizes.num_attention_heads,
            head_width: sizes.head_width(),
            eps: sizes.layer_norm_eps,
            is_tanh_gelu: sizes.is_tanh_gelu()?,
            dropout: work.dropout as f32,
        };
        let trunk = work.family.trunk();
        let table = |kind: &str| parameters.get(&format!("{trunk}.embeddings.{kind}_embeddings.weight"));
        let embedding = |kind: &str| -> Result<Embedding> {
            let table = table(kind)?;
            let width = table.dim(1)?;
            Ok(Embedding::new(table, width))
        };
        let layer = |index| Layer::new(parameters, &settings, &format!("{trunk}.encoder.layer.{index}"));
        let projection = format!("{trunk}.embeddings_project");
        let projection = if sizes.projects_embeddings() { Some(linear(parameters, &projection)?) } else { None };
        Ok(Self {
            words: embedding("word")?,
            types: embedding("token_type")?,
            positions: table("position")?,
            norm: Norm::new(parameters, &settings, &format!("{trunk}.embeddings"))?,
            projection,
            layers: (0..sizes.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            head: Head::new(parameters, &settings, work.family)?,
            settings,
        })
    }

    /// `[N, S, H]`
    fn states(&self, batch: &Batch, trains: bool) -> Result<Tensor> {
        let length = batch.words.dim(1)?;
        let x = (self.words.forward(&batch.words)? + self.types.forward(&batch.types)?)?;
        let x = self.norm.forward_t(&x.broadcast_add(&self.positions.narrow(0, 0, length)?)?, trains)?;
        let mut x = self.settings.dropped(x, trains)?;
        if let Some(projection) = &self.projection {
            x = projection.forward(&x)?;
        }
        for layer in &self.layers {
            x = layer.forward(&x, &batch.bias, trains)?;
        }
        Ok(x)
    }

    /// BERT's logits of words `[N P, V]` and of following sentences `[N, 2]`; ELECTRA's scores of starts and ends `[N, S]`.
    fn outputs(&self, batch: &Batch, trains: bool) -> Result<[Tensor; 2]> {
        let x = self.states(batch, trains)?;
        match (&self.head, &batch.targets) {
            (Head::Bert { pooler, following, transform, norm, vocabulary }, Targets::Bert { rows, .. }) => {
                let masked = x.flatten(0, 1)?.index_select(rows, 0)?;
                let masked = norm.forward_t(&self.settings.gelu(&transform.forward(&masked)?)?, trains)?;
                let first = x.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?;
                let pooled = pooler.forward(&first)?.tanh()?;
                Ok([vocabulary.forward(&masked)?, following.forward(&pooled)?])
            }
            (Head::Electra(scores), _) => {
                let scores = scores.forward(&x)?;
                let part = |index| scores.narrow(2, index, 1)?.squeeze(2)?.contiguous();
                Ok([part(0)?, part(1)?])
            }
            (Head::Bert { .. }, Targets::Electra { .. }) => unreachable!("batches are of the model's family"),
        }
    }
}

impl Head {
    fn new(parameters: &Parameters, settings: &Settings, family: Family) -> Result<Self> {
        if family == Family::Electra {
            return Ok(Self::Electra(linear(parameters, "qa_outputs")?));
        }
        let words = parameters.get("bert.embeddings.word_embeddings.weight")?;
        Ok(Self::Bert {
            pooler: linear(parameters, "bert.pooler.dense")?,
            following: linear(parameters, "cls.seq_relationship")?,
            transform: linear(parameters, "cls.predictions.transform.dense")?,
            norm: Norm::new(parameters, settings, "cls.predictions.transform")?,
            vocabulary: Linear::new(words, Some(parameters.get("cls.predictions.bias")?)),
        })
    }
}

fn linear(parameters: &Parameters, name: &str) -> Result<Linear> {
    Ok(Linear::new(parameters.get(&format!("{name}.weight"))?, Some(parameters.get(&format!("{name}.bias"))?)))
}

/// A layer norm: one kernel in inference, and in training operations that have a backward pass.
struct Norm {
    norm: LayerNorm,
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new(parameters: &Parameters, settings: &Settings, name: &str) -> Result<Self> {
        let [weight, bias] = ["weight", "bias"].map(|kind| parameters.get(&format!("{name}.LayerNorm.{kind}")));
        let (weight, bias) = (weight?, bias?);
        Ok(Self { norm: LayerNorm::new(weight.clone(), bias.clone(), settings.eps), weight, bias })
    }
}

impl ModuleT for Norm {
    fn forward_t(&self, x: &Tensor, trains: bool) -> Result<Tensor> {
        if trains { layer_norm_slow(x, &self.weight, &self.bias, self.norm.eps() as f32) } else { self.norm.forward(x) }
    }
}

struct Layer {
    settings: Settings,
    projections: Linear,
    attended: Residual,
    wide: Linear,
    output: Residual,
}

impl Layer {
    fn new(parameters: &Parameters, settings: &Settings, name: &str) -> Result<Self> {
        Ok(Self {
            settings: *settings,
            projections: linear(parameters, &format!("{name}.attention.self.projections"))?,
            attended: Residual::new(parameters, settings, &format!("{name}.attention.output"))?,
            wide: linear(parameters, &format!("{name}.intermediate.dense"))?,
            output: Residual::new(parameters, settings, &format!("{name}.output"))?,
        })
    }

    fn forward(&self, x: &Tensor, bias: &Tensor, trains: bool) -> Result<Tensor> {
        let attended = self.attended.forward(&self.attend(x, bias, trains)?, x, &self.settings, trains)?;
        let wide = self.settings.gelu(&self.wide.forward(&attended)?)?;
        self.output.forward(&wide, &attended, &self.settings, trains)
    }

    /// `[N, S, H]` to the same.
    fn attend(&self, x: &Tensor, bias: &Tensor, trains: bool) -> Result<Tensor> {
        let (samples, length, _) = x.dims3()?;
        let Settings { heads, head_width, .. } = self.settings;
        let projected = self.projections.forward(x)?.reshape((samples, length, 3, heads, head_width))?;
        // [N, heads, S, width]
        let part = |index| projected.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scores = (query.matmul(&key.t()?)? * (head_width as f64).powf(-0.5))?.broadcast_add(bias)?;
        let weights = if trains { softmax(&scores, D::Minus1)? } else { softmax_last_dim(&scores)? };
        let context = self.settings.dropped(weights, trains)?.matmul(&value)?;
        context.transpose(1, 2)?.contiguous()?.flatten_from(2)
    }
}

/// `norm(previous + dropout(dense(x)))`
struct Residual {
    dense: Linear,
    norm: Norm,
}

impl Residual {
    fn new(parameters: &Parameters, settings: &Settings, name: &str) -> Result<Self> {
        let dense = linear(parameters, &format!("{name}.dense"))?;
        Ok(Self { dense, norm: Norm::new(parameters, settings, name)? })
    }

    fn forward(&self, x: &Tensor, previous: &Tensor, settings: &Settings, trains: bool) -> Result<Tensor> {
        let x = settings.dropped(self.dense.forward(x)?, trains)?;
        self.norm.forward_t(&(x + previous)?, trains)
    }
}
