//! Bessemer as one of the frameworks that are compared.

use super::protocol::{Ability, Answer, Capabilities, Purpose, Request, VERSION, Variant, group_of, outputs_of};
use super::work::{BATCHES_FILE, Description, WEIGHTS_FILE, WorkError};
use crate::machine::{peak_resident_bytes, resident_bytes};
use crate::measure::{ISA_OPTION, MeasureError, Timed, compiled, loss_of};
use crate::profile::{by_kind, profile};
use crate::workload::{Mode, StepSettings, Work, Workload};
use bessemer_ir::passes::CompileOptions;
use bessemer_ir::run::{Device, Executor, RunError, StateStore, write_f32};
use bessemer_ir::{DType, Role};
use bessemer_train::recipe::Compute;
use bessemer_train::tasks::registry::all;
use bessemer_train::{DeviceError, DeviceKind, DeviceOptions};
use bessemer_weights::{Dtype, FileError, NamedTensor, TensorError, TensorFile, write_safetensors};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Its name among frameworks.
pub const NAME: &str = "bessemer";
/// Operations merged, and one kernel for each.
pub const FUSED: &str = "fused";
const UNFUSED: &str = "unfused";

/// Why this program cannot do a piece of work for a comparison.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("there is no {what} `{name}`")]
    Unsupported { what: &'static str, name: String },
}

impl From<RunError> for OwnError {
    fn from(error: RunError) -> Self {
        Self::Measure(error.into())
    }
}

/// The answer to `describe`.
///
/// # Errors
/// [`DeviceError`], of the processors.
pub fn describe() -> Result<Capabilities, DeviceError> {
    let variant = |name: &str, fused, settings: &str| Variant {
        name: name.to_owned(),
        fused,
        default: fused,
        settings: settings.to_owned(),
    };
    let has_bf16 = DeviceOptions::default().open()?.properties().bf16.is_some();
    let on_cpu = if has_bf16 { vec!["fp16"] } else { vec!["bf16", "fp16"] };
    let devices = [(DeviceKind::Cpu, on_cpu), (DeviceKind::Cuda { index: 0 }, Vec::new())];
    let ability = |model: &str, mode, (device, emulated): &(DeviceKind, Vec<&str>)| Ability {
        model: model.to_owned(),
        mode,
        precisions: Compute::all_on(*device).map(|known| known.name().to_owned()).collect(),
        emulated: emulated.iter().map(|&name| name.to_owned()).collect(),
        outputs: if mode == Mode::Infer { outputs_of(model).to_vec() } else { Vec::new() },
        device: device.name().to_owned(),
    };
    let abilities = |model| {
        let modes = [Mode::Train, Mode::Infer].into_iter();
        modes
            .flat_map(|mode| devices.iter().map(move |device| (mode, device)))
            .map(move |(mode, device)| ability(model, mode, device))
    };
    let models = all().map(|model| model.name()).filter(|name| group_of(name).is_some());
    Ok(Capabilities {
        protocol: VERSION,
        framework: NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        variants: vec![
            variant(FUSED, true, "the whole step compiled to one plan"),
            variant(UNFUSED, false, "a kernel for each operation"),
        ],
        work: models.flat_map(abilities).collect(),
    })
}

/// The answer to `run`.
///
/// # Errors
/// A folder that is not whole, a precision or variant that is not known, no memory.
pub fn run(request: &Request) -> Result<Answer, OwnError> {
    let import_memory_bytes = resident_bytes();
    let description = Description::read(&request.work)?;
    let settings = match request.purpose {
        Purpose::Time => description.settings(),
        Purpose::Check => StepSettings { dropout: 0.0, ..description.settings() },
    };
    let mut step = Step::prepare(request, settings)?;
    let mut outputs = Outputs::default();
    let timed = Timed::window(request.warmup, request.steps, |index| {
        let loss = step.run(index)?;
        if request.outputs.is_some() {
            outputs.take(&*step.executor)?;
        }
        Ok::<_, OwnError>(loss)
    })?;
    if let Some(path) = &request.outputs {
        write_safetensors(path, &outputs.tensors(request.steps)?)?;
    }
    let peak_memory_bytes = step.opened.memory_in_use().or_else(peak_resident_bytes);
    let kernels = match request.purpose {
        Purpose::Time => by_kind(&profile(&mut *step.executor, 1).map_err(MeasureError::from)?),
        Purpose::Check => Vec::new(),
    };
    Ok(Answer {
        protocol: VERSION,
        framework: NAME.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        options: [
            ("fuse".to_owned(), (request.variant == FUSED).into()),
            (ISA_OPTION.to_owned(), step.device.instruction_set.name().into()),
        ]
        .into(),
        step_ms: timed.step_ms,
        window_s: timed.window_s,
        losses: timed.losses,
        peak_memory_bytes,
        import_memory_bytes,
        kernels,
    })
}

/// A compiled step with the weights of a work folder, and its batches.
struct Step {
    device: DeviceOptions,
    opened: Arc<dyn Device>,
    executor: Box<dyn Executor>,
    mode: Mode,
    feeds: Feeds,
    batches: usize,
    /// The batch that lies ready, and that no step has taken.
    fed: Option<usize>,
}

impl Step {
    fn prepare(request: &Request, settings: StepSettings) -> Result<Self, OwnError> {
        let unknown = |what, name: &str| OwnError::Unsupported { what, name: name.to_owned() };
        let fuse = match request.variant.as_str() {
            FUSED => true,
            UNFUSED => false,
            other => return Err(unknown("variant", other)),
        };
        let Request { threads, device: kind, ref gpu_libraries, .. } = *request;
        let device = DeviceOptions { kind, threads, gpu_libraries: gpu_libraries.clone(), ..DeviceOptions::default() };
        let precision = Compute::ALL.into_iter().find(|known| known.name() == request.precision);
        let options = precision
            .and_then(|precision| {
                precision.options(device.kind, CompileOptions { fuse, ..CompileOptions::default() }).ok()
            })
            .ok_or_else(|| unknown("precision", &request.precision))?;
        let Request { model, mode, batch_size, .. } = request;
        let work = Work { model, mode: *mode, batch_size: *batch_size, precision: options.precision, settings };
        let workload = work.build().map_err(MeasureError::from)?;
        let opened = device.open().map_err(MeasureError::from)?;
        let executor = compiled(&workload, &*opened, &options)?;
        load_weights(&**executor.state(), &workload, request)?;
        let (feeds, batches) = read_batches(&workload, request)?;
        let mut step = Self { device, opened, executor, mode: request.mode, feeds, batches, fed: None };
        step.write_feeds(0)?;
        step.executor.compute_invariants()?;
        Ok(step)
    }

    /// Runs the step that comes `index`-th; the loss when training. Devices that compute in the background get the batch of the next
    /// step meanwhile, as in training.
    fn run(&mut self, index: usize) -> Result<Option<f64>, OwnError> {
        let batch = index % self.batches;
        if self.fed.take() != Some(batch) {
            self.write_feeds(batch)?;
        }
        let ticket = self.executor.submit()?;
        if self.executor.computes_in_background() {
            self.write_feeds((index + 1) % self.batches)?;
        }
        Ok(loss_of(self.executor.collect(ticket)?, self.mode)?)
    }

    fn write_feeds(&mut self, batch: usize) -> Result<(), OwnError> {
        for (name, bytes) in &self.feeds {
            let size = bytes.len() / self.batches;
            self.executor.feed(&[(name, &bytes[batch * size..][..size])])?;
        }
        self.fed = Some(batch);
        Ok(())
    }
}

/// Tensors of the model from the folder, those of the optimizer as they begin; one is held at a time.
fn load_weights(state: &dyn StateStore, workload: &Workload, request: &Request) -> Result<(), OwnError> {
    let file = TensorFile::open(&request.work.join(WEIGHTS_FILE))?;
    for spec in workload.specs.iter().filter(|spec| spec.ty.dtype == DType::F32) {
        if !spec.kind.is_model() {
            write_f32(state, &spec.name, &bessemer_nn::initialise(spec, request.seed))?;
            continue;
        }
        let (found, wanted) = (file.shape(&spec.name)?, spec.external_shape());
        if found != wanted.dims() {
            let problem = format!("`{}` is {found:?} in the weights and {wanted} in the model", spec.name);
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem).into());
        }
        write_f32(state, &spec.name, &spec.from_external(&file.read_f32(&spec.name)?))?;
    }
    Ok(())
}

/// Bytes of one batch after the other, by feed.
type Feeds = Vec<(String, Vec<u8>)>;

/// All batches, and their number.
fn read_batches(workload: &Workload, request: &Request) -> Result<(Feeds, usize), OwnError> {
    let file = TensorFile::open(&request.work.join(BATCHES_FILE))?;
    let (mut feeds, mut batches) = (Vec::new(), 1);
    for (_, feed) in workload.graph.inputs().filter(|(_, input)| input.role == Role::Feed) {
        batches = file.shape(&feed.name)?.first().copied().unwrap_or(1);
        feeds.push((feed.name.clone(), file.read(&feed.name)?.data.into_owned()));
    }
    Ok((feeds, batches))
}

/// What came out of each step, by output.
#[derive(Default)]
struct Outputs(BTreeMap<String, (Vec<usize>, Vec<u8>)>);

impl Outputs {
    fn take(&mut self, executor: &dyn Executor) -> Result<(), OwnError> {
        let graph = &executor.plan().graph;
        for (name, value) in graph.outputs().iter().map(|output| (&output.0, output.1)) {
            let shape = graph.shape(value).dims().to_vec();
            let kept = self.0.entry(name.clone()).or_insert_with(|| (shape, Vec::new()));
            let numbers = match graph.ty(value).dtype {
                DType::I32 => executor.output_i32(name)?.iter().map(|&number| number as f32).collect(),
                _ => executor.output_f32(name)?.to_vec(),
            };
            kept.1.extend(numbers.into_iter().flat_map(f32::to_le_bytes));
        }
        Ok(())
    }

    fn tensors(self, steps: usize) -> Result<Vec<NamedTensor<'static>>, TensorError> {
        let tensor = |(name, (shape, bytes)): (String, (Vec<usize>, Vec<u8>))| {
            let shape: Vec<usize> = std::iter::once(steps).chain(shape).collect();
            NamedTensor::new(name, Dtype::F32, shape, bytes)
        };
        self.0.into_iter().map(tensor).collect()
    }
}
