//! Candle as a peer of Bessemer; `../../PROTOCOL.md` says what it is called with.

mod optimizers;
mod parameters;
mod resnet;
mod text;

use candle_core::{Device, Result as CandleResult, Tensor};
use optimizers::Updates;
use parameters::Parameters;
use peer::{Array, Done, Family, Framework, Options, Prepared, Request, Result, Variant, Work};
use std::process::ExitCode;

struct Candle;

impl Framework for Candle {
    const NAME: &'static str = "candle";
    const VARIANTS: &'static [Variant] = &[Variant {
        name: "eager",
        fused: false,
        default: true,
        settings: "pure Rust (gemm) built for this processor; inference: batch norms absorbed by convolutions, kernels for \
                   softmax and layer norm; one product for queries, keys and values",
    }];

    fn version() -> &'static str {
        peer::locked_version(include_str!("../Cargo.lock"), "candle-core").unwrap_or("unknown")
    }

    fn prepare(request: &Request, mut work: Work) -> Result<Prepared> {
        let parameters = Parameters::new(work.take_weights()?, request.trains())?;
        let model: Box<dyn Model> = match work.family {
            Family::ResNet => Box::new(resnet::Work::new(&work, &parameters)?),
            Family::Bert | Family::Electra => Box::new(text::Work::new(&work, &parameters)?),
        };
        let updates = if request.trains() { Some(Updates::new(&work.training, &parameters)?) } else { None };
        Ok(Prepared { step: step(model, updates), options: Options::new() })
    }
}

/// A model with the batches of the work.
trait Model: Send + Sync {
    /// The loss of a batch in training.
    fn loss(&self, batch: usize) -> CandleResult<Tensor>;

    /// Outputs of a batch in inference.
    fn outputs(&self, batch: usize) -> CandleResult<Vec<Tensor>>;
}

/// Inference, or training where there are `updates`. Steps run in Candle's own threads.
fn step(model: Box<dyn Model>, mut updates: Option<Updates>) -> peer::Step {
    Box::new(move |batch| {
        let done = Device::Cpu.with_context(|| match &mut updates {
            Some(updates) => train(model.as_ref(), updates, batch),
            None => model.outputs(batch)?.iter().map(array).collect::<CandleResult<_>>().map(Done::Outputs),
        });
        Ok(done?)
    })
}

fn train(model: &dyn Model, updates: &mut Updates, batch: usize) -> CandleResult<Done> {
    let loss = model.loss(batch)?;
    updates.apply(&loss.backward()?)?;
    Ok(Done::Loss(loss.to_scalar::<f32>()?.into()))
}

fn array(tensor: &Tensor) -> CandleResult<Array> {
    Ok(Array { shape: tensor.dims().to_vec(), values: tensor.flatten_all()?.to_vec1()? })
}

fn main() -> ExitCode {
    peer::main::<Candle>()
}
