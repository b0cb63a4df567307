//! BERT in pre-training, and ELECTRA that answers questions, by Hugging Face's names but for queries, keys and values.

use crate::parameters::{Parameters, floats, integers};
use crate::{Model, array};
use burn_tensor::activation::{gelu, gelu_approximate, log_softmax, softmax};
use burn_tensor::module::{attention, embedding, layer_norm, linear};
use burn_tensor::ops::AttentionModuleOptions;
use burn_tensor::{Device, Distribution, Int, Tensor};
use peer::{Array, Family, Result, Text};

/// Added to scores of attention to what is padding.
const MASKED_SCORE: f64 = -10_000.0;

/// The network with its batches.
pub(crate) struct Work {
    parameters: Parameters,
    family: Family,
    sizes: Text,
    is_tanh_gelu: bool,
    trains: bool,
    dropout: f64,
    batches: Vec<Batch>,
}

struct Batch {
    /// `[N, S]`
    words: Tensor<2, Int>,
    types: Tensor<2, Int>,
    /// Added to scores of attention, `[N, 1, 1, S]`.
    bias: Tensor<4>,
    targets: Targets,
}

enum Targets {
    Bert(Box<Predicted>),
    /// First and last tokens of answers, `[N]` each.
    Electra(Box<[Tensor<1, Int>; 2]>),
}

/// What BERT predicts in pre-training.
struct Predicted {
    /// Rows of the states `[N S, H]`, and their words, `[N P]`.
    rows: Tensor<1, Int>,
    words: Tensor<1, Int>,
    weights: Tensor<1>,
    /// `[N]`
    following: Tensor<1, Int>,
}

impl Work {
    pub(crate) fn new(work: &peer::Work, parameters: Parameters, device: &Device) -> Result<Self> {
        let peer::Sizes::Text(sizes) = &work.sizes else { unreachable!("the family is of text") };
        Ok(Self {
            parameters,
            family: work.family,
            is_tanh_gelu: sizes.is_tanh_gelu()?,
            sizes: sizes.clone(),
            trains: device.is_autodiff(),
            dropout: work.dropout,
            batches: batches(work, device)?,
        })
    }

    fn linear<const D: usize>(&self, name: &str, x: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        linear(x, self.parameters.matrix(&weight), Some(self.parameters.vector(&bias)))
    }

    fn norm<const D: usize>(&self, name: &str, x: Tensor<D>) -> Tensor<D> {
        let [scale, shift] = ["weight", "bias"].map(|kind| self.parameters.vector(&format!("{name}.LayerNorm.{kind}")));
        layer_norm(x, scale, Some(shift), self.sizes.layer_norm_eps)
    }

    fn gelu<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.is_tanh_gelu { gelu_approximate(x) } else { gelu(x) }
    }

    fn dropped<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.dropout == 0.0 {
            return x;
        }
        let kept = x.random_like(Distribution::Bernoulli(1.0 - self.dropout));
        x * kept * (1.0 / (1.0 - self.dropout))
    }

    /// `norm(previous + dropout(dense(x)))`
    fn residual(&self, name: &str, x: Tensor<3>, previous: Tensor<3>) -> Tensor<3> {
        let x = self.dropped(self.linear(&format!("{name}.dense"), x));
        self.norm(name, x + previous)
    }

    /// `[N, S, H]` to the same.
    fn attend(&self, name: &str, x: Tensor<3>, bias: Tensor<4>) -> Tensor<3> {
        let [samples, length, hidden] = x.dims();
        let (heads, width) = (self.sizes.num_attention_heads, self.sizes.head_width());
        let projected = self.linear(&format!("{name}.projections"), x);
        // [N, heads, S, width]
        let part = |index: usize| {
            let part = projected.clone().narrow(2, index * hidden, hidden);
            part.reshape([samples, length, heads, width]).swap_dims(1, 2)
        };
        let (query, key, value) = (part(0), part(1), part(2));
        let context = if self.trains {
            let scores = query.matmul(key.transpose()) * (width as f64).powf(-0.5) + bias;
            self.dropped(softmax(scores, 3)).matmul(value)
        } else {
            let bias = bias.expand([samples, 1, length, length]);
            attention(query, key, value, None, Some(bias), AttentionModuleOptions::default())
        };
        context.swap_dims(1, 2).reshape([samples, length, hidden])
    }

    /// `[N, S, H]`
    fn states(&self, batch: &Batch) -> Tensor<3> {
        let trunk = self.family.trunk();
        let length = batch.words.dims()[1];
        let table = |kind: &str| self.parameters.matrix(&format!("{trunk}.embeddings.{kind}_embeddings.weight"));
        let x = embedding(table("word"), batch.words.clone()) + embedding(table("token_type"), batch.types.clone());
        let x = x + table("position").narrow(0, 0, length).unsqueeze_dim(0);
        let mut x = self.dropped(self.norm(&format!("{trunk}.embeddings"), x));
        if self.sizes.projects_embeddings() {
            x = self.linear(&format!("{trunk}.embeddings_project"), x);
        }
        for layer in 0..self.sizes.num_hidden_layers {
            let layer = format!("{trunk}.encoder.layer.{layer}");
            let attended = self.attend(&format!("{layer}.attention.self"), x.clone(), batch.bias.clone());
            let attended = self.residual(&format!("{layer}.attention.output"), attended, x);
            let wide = self.gelu(self.linear(&format!("{layer}.intermediate.dense"), attended.clone()));
            x = self.residual(&format!("{layer}.output"), wide, attended);
        }
        x
    }

    /// BERT's logits of words `[N P, V]` and of following sentences `[N, 2]`; ELECTRA's scores of starts and ends `[N, S]`.
    fn scores(&self, batch: &Batch) -> [Tensor<2>; 2] {
        let x = self.states(batch);
        let Targets::Bert(predicted) = &batch.targets else {
            let scores = self.linear("qa_outputs", x);
            return [0, 1].map(|index| scores.clone().narrow(2, index, 1).squeeze_dim(2));
        };
        let masked = x.clone().flatten::<2>(0, 1).select(0, predicted.rows.clone());
        let head = "cls.predictions.transform";
        let masked = self.norm(head, self.gelu(self.linear(&format!("{head}.dense"), masked)));
        let words = self.parameters.matrix("bert.embeddings.word_embeddings.weight");
        let words = masked.matmul(words.transpose()) + self.parameters.vector("cls.predictions.bias").unsqueeze::<2>();
        let first: Tensor<2> = x.narrow(1, 0, 1).squeeze_dim(1);
        let pooled = self.linear("bert.pooler.dense", first).tanh();
        [words, self.linear("cls.seq_relationship", pooled)]
    }
}

impl Model for Work {
    fn parameters(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn loss(&mut self, batch: usize) -> Tensor<1> {
        let batch = &self.batches[batch];
        let [first, second] = self.scores(batch);
        match &batch.targets {
            Targets::Bert(predicted) => {
                let Predicted { words, weights, following, .. } = predicted.as_ref();
                let by_word = (cross_entropies(first, words) * weights.clone()).sum();
                by_word / weights.clone().sum() + cross_entropies(second, following).mean()
            }
            Targets::Electra(positions) => {
                let [starts, ends] = positions.as_ref();
                (cross_entropies(first, starts).mean() + cross_entropies(second, ends).mean()) * 0.5
            }
        }
    }

    fn outputs(&mut self, batch: usize) -> Result<Vec<Array>> {
        let batch = &self.batches[batch];
        let [first, second] = self.scores(batch);
        let (mut first, second) = (array(first)?, array(second)?);
        if self.family == Family::Bert {
            let samples = batch.words.dims()[0];
            first.shape = vec![samples, first.shape[0] / samples, first.shape[1]];
        }
        Ok(vec![first, second])
    }
}

/// Of each row of logits `[R, classes]`.
fn cross_entropies(logits: Tensor<2>, labels: &Tensor<1, Int>) -> Tensor<1> {
    log_softmax(logits, 1).gather(1, labels.clone().unsqueeze_dim(1)).squeeze_dim::<1>(1).neg()
}

fn batches(work: &peer::Work, device: &Device) -> Result<Vec<Batch>> {
    let (words, types, masks) =
        (work.integers("input_ids")?, work.integers("segment_ids")?, work.integers("input_mask")?);
    let length = words[0].shape[1];
    let parts = words.into_iter().zip(types).zip(masks).zip(targets(work, length, device)?);
    Ok(parts
        .map(|(((words, types), mask), targets)| {
            let kept = integers::<2>(mask, device).float().unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(1);
            let bias = (kept.neg() + 1.0) * MASKED_SCORE;
            Batch { words: integers(words, device), types: integers(types, device), bias, targets }
        })
        .collect())
}

/// Of each batch.
fn targets(work: &peer::Work, length: usize, device: &Device) -> Result<Vec<Targets>> {
    if work.family == Family::Electra {
        let pairs = work.integers("start_positions")?.into_iter().zip(work.integers("end_positions")?);
        let positions = pairs.map(|(starts, ends)| [starts, ends].map(|tokens| integers(tokens, device)));
        return Ok(positions.map(|positions| Targets::Electra(Box::new(positions))).collect());
    }
    let positions = work.integers("masked_lm_positions")?.into_iter();
    let words = work.integers("masked_lm_ids")?.into_iter().zip(work.floats("masked_lm_weights")?);
    let parts = positions.zip(words).zip(work.integers("next_sentence_labels")?);
    let predicted = parts.map(|((positions, (words, weights)), following)| Predicted {
        rows: integers(rows(&positions, length), device),
        words: integers::<2>(words, device).flatten(0, 1),
        weights: floats::<2>(weights, device).flatten(0, 1),
        following: integers(following, device),
    });
    Ok(predicted.map(|predicted| Targets::Bert(Box::new(predicted))).collect())
}

/// Positions `[N, P]` as rows of `[N S, H]`.
fn rows(positions: &Array<i32>, length: usize) -> Array<i32> {
    let samples = positions.values.chunks(positions.shape[1]).enumerate();
    let values: Vec<i32> = samples
        .flat_map(|(sample, positions)| positions.iter().map(move |position| position + (sample * length) as i32))
        .collect();
    Array { shape: vec![values.len()], values }
}
