//! Runs cases on a device.

use super::case::{Case, decode, encode};
use crate::cubins::CubinCache;
use crate::driver::{Arena, Block, Context, Driver, Function, Graph, Stream};
use crate::error::GpuError;
use crate::kgen::{Kernel, MOST_ARRIVALS, Operand};
use crate::loader::{Libraries, Wanted};
use crate::nvrtc::{Nvrtc, Resources, resources};
use std::time::Duration;

/// A device with the compiler of its kernels.
pub struct Runner {
    /// Context of the device.
    pub context: Context,
    /// The stream on which everything runs, in order.
    pub stream: Stream,
    nvrtc: Nvrtc,
    cache: CubinCache,
}

/// A case in the device's memory.
pub struct Loaded<'a> {
    runner: &'a Runner,
    case: &'a Case,
    launches: Vec<(Function, Vec<Block>)>,
    inputs: Vec<Block>,
    outputs: Vec<Block>,
    arrivals: Block,
    all: Block,
    /// What the compiler says of each kernel, where it says something.
    pub resources: Vec<Resources>,
}

impl Runner {
    /// Opens the device with this ordinal and the run-time compiler; compiled kernels are kept in `cache`.
    ///
    /// # Errors
    /// There is no such device, or no compiler.
    pub fn new(libraries: &Libraries, ordinal: usize, cache: CubinCache) -> Result<Runner, GpuError> {
        let driver = Driver::open(&libraries.require(Wanted::Driver)?.path)?;
        libraries.check_versions(Some(driver.version()))?;
        let context = Context::new(&driver, ordinal)?;
        let stream = context.stream()?;
        Ok(Runner { context, stream, nvrtc: Nvrtc::open(libraries)?, cache })
    }

    fn function(&self, kernel: &Kernel) -> Result<(Function, Option<Resources>), GpuError> {
        let architecture = self.context.info().architecture();
        let (compiled, _) = self.cache.get(&self.nvrtc, &kernel.name, &kernel.text, &architecture)?;
        Ok((self.context.module(&compiled.cubin)?.function(kernel)?, resources(&compiled.log)))
    }

    /// Compiles the case's kernels and makes room for its tensors. Inputs are filled, outputs poisoned.
    ///
    /// # Errors
    /// A kernel does not compile, or there is no room.
    pub fn load<'a>(&'a self, case: &'a Case) -> Result<Loaded<'a>, GpuError> {
        let sizes = |sizes: &mut dyn Iterator<Item = usize>| sizes.map(|bytes| bytes.max(1)).collect::<Vec<usize>>();
        let groups = [
            vec![4 * MOST_ARRIVALS],
            sizes(&mut case.inputs.iter().map(|input| input.ty.bytes())),
            sizes(&mut case.outputs.iter().map(|output| output.after.ty.bytes())),
            sizes(&mut case.work.scratch.iter().map(|elements| elements * 4)),
        ];
        let padded = |bytes: &usize| bytes.next_multiple_of(Arena::ALIGNMENT);
        let arena = self.context.arena(groups.iter().flatten().map(padded).sum())?;
        let mut offset = 0;
        let mut blocks = |sizes: &[usize]| {
            let mut block = |bytes: &usize| {
                let block = arena.block(offset, *bytes);
                offset += padded(bytes);
                block
            };
            sizes.iter().map(&mut block).collect::<Result<Vec<Block>, GpuError>>()
        };
        let arrivals = blocks(&groups[0])?.remove(0);
        let (inputs, outputs, scratch) = (blocks(&groups[1])?, blocks(&groups[2])?, blocks(&groups[3])?);
        let (mut launches, mut used) = (Vec::new(), Vec::new());
        for launch in &case.work.launches {
            let (function, resources) = self.function(&launch.kernel)?;
            let block = |operand: &Operand| match *operand {
                Operand::Input(index) => inputs[index].clone(),
                Operand::Output(index) => outputs[index].clone(),
                Operand::Scratch(index) => scratch[index].clone(),
                Operand::Arrivals => arrivals.clone(),
            };
            launches.push((function, launch.operands.iter().map(block).collect()));
            used.extend(resources);
        }
        let all = arena.block(0, arena.bytes())?;
        let loaded = Loaded { runner: self, case, launches, inputs, outputs, arrivals, all, resources: used };
        loaded.reset()?;
        Ok(loaded)
    }
}

impl Loaded<'_> {
    /// Poisons everything, and fills in what is read.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn reset(&self) -> Result<(), GpuError> {
        let stream = &self.runner.stream;
        stream.fill(&self.all, 0xff)?;
        stream.fill(&self.arrivals, 0)?;
        for (input, block) in self.case.inputs.iter().zip(&self.inputs) {
            stream.upload(&encode(input.ty.dtype, &input.data), block)?;
        }
        for (output, block) in self.case.outputs.iter().zip(&self.outputs) {
            if let Some(before) = &output.before {
                stream.upload(&encode(output.after.ty.dtype, before), block)?;
            }
        }
        Ok(())
    }

    /// Gives all launches to the stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch(&self) -> Result<(), GpuError> {
        for (function, blocks) in &self.launches {
            self.runner.stream.launch(function, blocks)?;
        }
        Ok(())
    }

    /// Records all launches.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn capture(&self) -> Result<Graph, GpuError> {
        self.runner.stream.capture(|| self.launch())
    }

    /// Records all launches and runs the record once.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn replay(&self) -> Result<(), GpuError> {
        self.capture()?.launch(&self.runner.stream)
    }

    /// What the outputs hold.
    ///
    /// # Errors
    /// Work before failed.
    pub fn outputs(&self) -> Result<Vec<Vec<f64>>, GpuError> {
        let output = |(output, block): (&super::case::Expected, &Block)| {
            let mut bytes = vec![0; block.bytes()];
            self.runner.stream.download(block, &mut bytes)?;
            Ok(decode(output.after.ty.dtype, &bytes))
        };
        self.case.outputs.iter().zip(&self.outputs).map(output).collect()
    }

    /// The shortest of `times` replays of all launches, after one that does not count.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn time(&self, times: usize) -> Result<Duration, GpuError> {
        let (graph, timer) = (self.capture()?, self.runner.context.timer()?);
        graph.launch(&self.runner.stream)?;
        let mut best = Duration::MAX;
        for _ in 0..times {
            best = best.min(timer.time(&self.runner.stream, || graph.launch(&self.runner.stream))?);
        }
        Ok(best)
    }
}
