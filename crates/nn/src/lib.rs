//! What models and training steps are made of: parameters with their names and initial values, layers, losses,
//! optimizers and learning-rate schedules. Everything here adds nodes to a graph; nothing here runs one.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod builder;
pub mod dropout;
pub mod init;
pub mod layers;
pub mod loss;
pub mod optim;
pub mod params;
pub mod preprocess;
pub mod ranks;
pub mod schedule;
pub mod text;
pub mod train_step;

pub use builder::{Builder, Mode};
pub use dropout::{RandomStream, Streams};
pub use init::{Fan, Init, initialise};
pub use layers::{
    BatchNorm, BatchNormOptions, Conv, ConvOptions, ConvTranspose, ConvTransposeOptions, LayerNorm, Linear,
    LinearOptions, MaxPool, Padding, SqueezeExcite, SqueezeExciteOptions,
};
pub use loss::{MaskedMean, Mixup, Targets};
pub use optim::{
    Adam, AdamMoments, Average, Clip, ClipForm, ClipOf, DecayExclude, DecayForm, EpsForm, Lamb, LossScale, Optimizer,
    STOP, Sgd, Trust, Velocity, accumulator_name,
};
pub use params::{ParamKind, ParamLayout, ParamSpec};
pub use preprocess::PixelScale;
pub use ranks::{Over, Ranks};
pub use schedule::{Decay, Form, Schedule, Warmup};
pub use text::Activation;
pub use train_step::{RateFactors, TrainConfig};

/// Result of adding nodes to a graph.
pub type Result<T> = std::result::Result<T, bessemer_ir::GraphError>;
