//! Initial weights of BERT's embeddings and layers.

use super::config::Bert;
use bessemer_nn::{Init, LinearOptions};
use serde::{Deserialize, Serialize};

/// Initial weights. Biases are 0 and scales of norms 1 but where it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BertInit {
    /// Normal of deviation `initializer_range`: Hugging Face.
    #[default]
    Normal,
    /// The same cut at two deviations: Google.
    Truncated,
    /// As `Normal`, but layers with an activation (the widening one, the pooler and the transformation before the vocabulary)
    /// keep PyTorch's default, weights and biases uniform in `±1 / sqrt(inputs)`: NVIDIA's PyTorch recipe.
    NvidiaTorch,
    /// Attention that looks as training leaves it, by which small networks learn from little text (after Trockman and Kolter,
    /// "Mimetic initialization of self-attention layers", 2023). The first half of the columns of the embeddings is the token's,
    /// normal; the second holds positions as sinusoids, and types. Queries and keys are the same multiple of the identity: the
    /// first heads look for the same token, the last ones for what stands nearby. All else as `Normal`.
    Mimetic,
}

/// Radians per place of the sinusoids of [`BertInit::Mimetic`]: the sharpest distinguish neighbours, the widest span a sequence.
const PLACE_FREQUENCIES: [f64; 2] = [0.5, 0.02];
/// Length of a type's vector, those of tokens and positions being 1.
const TYPE_LENGTH: f64 = 0.39;
/// Diagonal of the matrices of queries and keys: the same token scores some 10 more than another one.
const SIMILARITY: f64 = 1.14;

/// Initial content of the tables of embeddings.
pub(super) struct Tables {
    pub tokens: Init,
    pub positions: Init,
    pub types: Init,
}

impl Bert<'_> {
    /// Distribution of weight matrices and embeddings.
    pub(crate) fn init(&self) -> Init {
        let std = self.config.initializer_range;
        match self.options.init {
            BertInit::Normal | BertInit::NvidiaTorch | BertInit::Mimetic => Init::Normal { std },
            BertInit::Truncated => Init::CutNormal { std },
        }
    }

    /// Tables of the tokens, positions and types, rows of `width` numbers.
    pub(super) fn tables(&self, width: usize) -> Tables {
        let init = self.init();
        if self.options.init != BertInit::Mimetic {
            return Tables { tokens: init, positions: init, types: init };
        }
        let half = width / 2;
        // Rows of length 1, those of types shorter.
        let std = |length: f64, columns: usize| length / (columns as f64).sqrt();
        Tables {
            tokens: Init::NormalColumns { std: std(1.0, half), columns: [0, half] },
            positions: Init::Sinusoids {
                first_column: half,
                amplitude: std(1.0, (width - half).div_ceil(2)),
                frequencies: PLACE_FREQUENCIES,
            },
            types: Init::NormalColumns { std: std(TYPE_LENGTH, width - half), columns: [half, width] },
        }
    }

    /// The layers of queries and keys.
    pub(crate) fn comparing(&self, outputs: usize) -> LinearOptions {
        match self.options.init {
            BertInit::Mimetic => LinearOptions { weight: Init::Diagonal(SIMILARITY), ..self.linear(outputs) },
            _ => self.linear(outputs),
        }
    }

    /// A layer without an activation.
    pub(crate) fn linear(&self, outputs: usize) -> LinearOptions {
        LinearOptions { outputs, weight: self.init(), bias: Init::Zeros }
    }

    /// A layer before an activation.
    pub(crate) fn active_linear(&self, inputs: usize, outputs: usize) -> LinearOptions {
        match self.options.init {
            BertInit::NvidiaTorch => LinearOptions::uniform(inputs, outputs),
            _ => self.linear(outputs),
        }
    }
}
