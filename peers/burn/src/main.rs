//! Burn as a peer of Bessemer; `../../PROTOCOL.md` says what it is called with.

mod optimizers;
mod parameters;
mod resnet;
mod text;

use burn_tensor::{Device, Tensor};
use parameters::Parameters;
use peer::{Array, Done, Family, Framework, Options, Prepared, Request, Result, Step, Training, Variant, Work};
use std::process::ExitCode;

struct Burn;

impl Framework for Burn {
    const NAME: &'static str = "burn";
    const VARIANTS: &'static [Variant] = &[Variant {
        name: "flex",
        fused: false,
        default: true,
        settings: "the backend Flex built for this processor, with SIMD and Rayon; its attention for inference; one product \
                   for queries, keys and values",
    }];

    fn version() -> &'static str {
        peer::locked_version(include_str!("../Cargo.lock"), "burn-tensor").unwrap_or("unknown")
    }

    fn prepare(request: &Request, mut work: Work) -> Result<Prepared> {
        let device = if request.trains() { Device::flex().autodiff() } else { Device::flex() };
        device.seed(request.seed);
        let parameters = Parameters::new(work.take_weights()?, &device)?;
        let model: Box<dyn Model> = match work.family {
            Family::ResNet => Box::new(resnet::Work::new(&work, parameters, &device)?),
            Family::Bert | Family::Electra => Box::new(text::Work::new(&work, parameters, &device)?),
        };
        let training = request.trains().then_some(work.training);
        Ok(Prepared { step: step(model, training), options: Options::new() })
    }
}

/// A model with the batches of the work. It trains on a device with gradients.
trait Model {
    fn parameters(&mut self) -> &mut Parameters;

    /// The loss of a batch in training, of one number.
    fn loss(&mut self, batch: usize) -> Tensor<1>;

    /// Outputs of a batch in inference.
    fn outputs(&mut self, batch: usize) -> Result<Vec<Array>>;
}

/// Training with these settings, or inference.
fn step(mut model: Box<dyn Model>, training: Option<Training>) -> Step {
    let mut count = 0;
    Box::new(move |batch| {
        let Some(training) = &training else { return Ok(Done::Outputs(model.outputs(batch)?)) };
        let loss = model.loss(batch);
        count += 1;
        model.parameters().update(training, count, loss.backward());
        Ok(Done::Loss(loss.into_scalar::<f32>().into()))
    })
}

fn array<const D: usize>(tensor: Tensor<D>) -> Result<Array> {
    let shape = tensor.dims().to_vec();
    let values = tensor.into_data().try_into_vec().map_err(|error| format!("{error:?}"))?;
    Ok(Array { shape, values })
}

fn main() -> ExitCode {
    peer::main::<Burn>()
}
