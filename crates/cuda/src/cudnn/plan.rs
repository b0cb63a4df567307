//! From graphs to plans: engines that cuDNN offers, best first, each judged by its notes before it is made.

use super::api::{
    ADDS_ROUGHLY, COMPILED_AT_RUN_TIME, CONVERTS_OPERANDS, DescriptorKind, NOT_DETERMINISTIC, TENSOR_CORES, attribute,
    kind_of,
};
use super::build::{ALIGNMENT, Built, build};
use super::descriptor::Descriptor;
use super::graph::Role;
use super::{Convolution, Cudnn, Fusion, Graph, Pass, PlanTarget, TensorId};
use crate::driver::{Block, Stream};
use crate::error::GpuError;
use bessemer_ir::DType;
use std::ptr::from_ref;
use std::sync::Arc;

/// How cuDNN chooses configurations, `cudnnBackendHeurMode_t`: `Best` orders them by expected speed, `Fallback` has one for
/// every plain convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heuristics {
    /// `CUDNN_HEUR_MODE_FALLBACK`
    Fallback = 2,
    /// `CUDNN_HEUR_MODE_A`
    Best = 3,
}

/// Ways to run a graph.
pub struct Planner {
    library: Arc<Cudnn>,
    graph: Arc<Graph>,
    heuristics: Heuristics,
    configurations: Vec<Descriptor>,
    _built: Built,
}

/// The engine that runs a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// cuDNN's number for it.
    pub number: i64,
    /// Whether it compiles its kernels when a plan is made.
    pub compiles: bool,
    /// Whether it multiplies on tensor cores, which round operands of `f32` to TF32.
    pub uses_tensor_cores: bool,
    /// Whether it may convert operands to another type before it multiplies them.
    pub converts_operands: bool,
    /// Whether it adds products in `f32`, as the graph says, and not in a type of fewer bits.
    pub adds_in_f32: bool,
    /// Whether it gives the same bits each time.
    pub is_deterministic: bool,
}

impl Engine {
    /// Whether it gives the same bits each time, adds in `f32`, and multiplies `f32` in full precision, or rounded to TF32 if `tf32`.
    pub fn suits(&self, ty: DType, tf32: bool) -> bool {
        let rounds = self.converts_operands || (self.uses_tensor_cores && !tf32);
        self.is_deterministic && self.adds_in_f32 && (ty != DType::F32 || !rounds)
    }
}

/// A way to run a graph, ready.
pub struct Plan {
    library: Arc<Cudnn>,
    graph: Arc<Graph>,
    plan: Arc<Descriptor>,
    /// The engine of cuDNN that runs the graph.
    pub engine: Engine,
    /// Who proposed it, and the number of its configuration among those.
    pub proposal: (Heuristics, usize),
    /// Bytes that it needs beside its tensors.
    pub workspace: usize,
}

/// A plan with the memory of its tensors.
pub struct Bound {
    library: Arc<Cudnn>,
    plan: Arc<Descriptor>,
    pack: Descriptor,
    /// Memory of each tensor, and whether the plan writes it.
    tensors: Vec<(Block, bool)>,
    workspace: Block,
    /// Numbers of the host that the pack points to.
    _values: Box<[f32]>,
}

impl Cudnn {
    /// Asks for ways to run `graph`, best first.
    ///
    /// # Errors
    /// cuDNN cannot run it.
    pub fn planner(self: &Arc<Self>, graph: &Graph, heuristics: Heuristics) -> Result<Planner, GpuError> {
        let built = build(self, graph)?;
        let asked = Descriptor::new(self, DescriptorKind::Heuristics)?;
        asked.descriptor(attribute::HEURISTICS_GRAPH, &built.graph)?;
        asked.code(attribute::HEURISTICS_MODE, kind_of::HEURISTICS_MODE, heuristics as i32)?;
        if let PlanTarget::Described(description) = self.target {
            asked.descriptors(attribute::HEURISTICS_DEVICE, &[description])?;
        }
        let asked = asked.finalize()?;
        let count = asked.count(attribute::HEURISTICS_RESULTS)?;
        let configurations =
            asked.get_descriptors(attribute::HEURISTICS_RESULTS, DescriptorKind::EngineConfig, count)?;
        let graph = Arc::new(graph.clone());
        Ok(Planner { library: Arc::clone(self), graph, heuristics, configurations, _built: built })
    }
}

/// Configurations of engines that are made for a convolution at most.
const ENGINES: usize = 16;
/// Bytes that an engine may need beside its tensors.
pub(crate) const MOST_WORKSPACE: usize = 512 << 20;

impl Cudnn {
    /// The first plan for a pass of a convolution, of operands and results of type `ty`, whose engine [suits](Engine::suits). Plans of
    /// others are not made, as some of their engines compile for a second.
    ///
    /// # Errors
    /// There is none among the configurations that cuDNN offers.
    pub fn suitable_plan(
        self: &Arc<Self>,
        of: &Convolution,
        pass: Pass,
        ty: DType,
        tf32: bool,
    ) -> Result<Plan, GpuError> {
        let graph = of.graph(Fusion::Plain(pass), ty);
        let mut why = GpuError::Launch {
            kernel: format!("{} of {of} in {ty}", Fusion::Plain(pass).name()),
            problem: format!(
                "cuDNN has no deterministic engine{}",
                if tf32 { " that adds in f32" } else { " of full precision" }
            ),
        };
        for heuristics in [Heuristics::Best, Heuristics::Fallback] {
            let planner = self.planner(&graph, heuristics)?;
            let suits = |number: &usize| planner.engine(*number).is_ok_and(|engine| engine.suits(ty, tf32));
            for number in (0..planner.len()).filter(suits).take(ENGINES) {
                match planner.plan(number) {
                    Ok(plan) if plan.workspace <= MOST_WORKSPACE => return Ok(plan),
                    Ok(_) => (),
                    Err(error) => why = error,
                }
            }
        }
        Err(why)
    }
}

impl Planner {
    /// How many configurations of engines cuDNN offers.
    pub fn len(&self) -> usize {
        self.configurations.len()
    }

    /// Whether cuDNN offers no configuration at all.
    pub fn is_empty(&self) -> bool {
        self.configurations.is_empty()
    }

    /// The engine of the configuration with this number, which need not support the graph.
    ///
    /// # Errors
    /// cuDNN does not say.
    pub fn engine(&self, number: usize) -> Result<Engine, GpuError> {
        engine(&self.configurations[number])
    }

    /// Makes the plan of the configuration with this number.
    ///
    /// # Errors
    /// It does not support the graph after all.
    pub fn plan(&self, number: usize) -> Result<Plan, GpuError> {
        let (library, configuration) = (&self.library, &self.configurations[number]);
        let plan = Descriptor::new(library, DescriptorKind::Plan)?;
        match library.target {
            PlanTarget::Device { .. } => {
                let (context, handle) = library.device("cudnnBackendFinalize")?;
                context.bind()?;
                plan.library_handle(attribute::PLAN_HANDLE, *handle)?;
            }
            PlanTarget::Described(description) => plan.descriptors(attribute::PLAN_DEVICE, &[description])?,
        }
        plan.descriptor(attribute::PLAN_CONFIG, configuration)?;
        let plan = plan.finalize()?;
        let workspace = usize::try_from(plan.get_int64(attribute::PLAN_WORKSPACE)?).unwrap_or(0);
        let (library, graph) = (Arc::clone(library), Arc::clone(&self.graph));
        let proposal = (self.heuristics, number);
        Ok(Plan { library, graph, plan: Arc::new(plan), engine: engine(configuration)?, proposal, workspace })
    }
}

fn engine(configuration: &Descriptor) -> Result<Engine, GpuError> {
    const MOST_NOTES: usize = 16;
    let engines = configuration.get_descriptors(attribute::CONFIG_ENGINE, DescriptorKind::Engine, 1)?;
    let Some(engine) = engines.first() else {
        let (uses_tensor_cores, converts_operands) = (true, true);
        return Ok(Engine {
            number: -1,
            compiles: false,
            uses_tensor_cores,
            converts_operands,
            adds_in_f32: false,
            is_deterministic: false,
        });
    };
    let behaves = engine.get_codes(attribute::ENGINE_BEHAVIOR, kind_of::BEHAVIOR_NOTE, MOST_NOTES)?;
    let computes = engine.get_codes(attribute::ENGINE_NUMERICS, kind_of::NUMERICAL_NOTE, MOST_NOTES)?;
    Ok(Engine {
        number: engine.get_int64(attribute::ENGINE_NUMBER)?,
        compiles: behaves.contains(&COMPILED_AT_RUN_TIME),
        uses_tensor_cores: computes.contains(&TENSOR_CORES),
        converts_operands: computes.contains(&CONVERTS_OPERANDS),
        adds_in_f32: !computes.contains(&ADDS_ROUGHLY),
        is_deterministic: !computes.contains(&NOT_DETERMINISTIC),
    })
}

impl Plan {
    /// As [`Plan::bind`], with blocks in the order of [`Graph::in_memory`].
    ///
    /// # Errors
    /// As [`Plan::bind`].
    pub(crate) fn bind_in_order(&self, blocks: &[Block], workspace: &Block) -> Result<Bound, GpuError> {
        let tensors: Vec<(TensorId, &Block)> = self.graph.in_memory().zip(blocks).collect();
        self.bind(&tensors, workspace)
    }

    /// Gives the plan its memory: a block for each tensor of [`Graph::in_memory`], and the workspace.
    ///
    /// # Errors
    /// A block is missing, too small or not aligned, or cuDNN refuses.
    pub fn bind(&self, tensors: &[(TensorId, &Block)], workspace: &Block) -> Result<Bound, GpuError> {
        let refused = |problem: String| GpuError::Launch { kernel: "cudnnBackendExecute".to_owned(), problem };
        let mut blocks = Vec::new();
        for id in self.graph.in_memory() {
            let tensor = self.graph.get(id);
            let given = tensors.iter().find(|(given, _)| *given == id);
            let (_, block) = given.ok_or_else(|| refused(format!("{} has no memory", tensor.name)))?;
            if block.bytes() < tensor.bytes() {
                let problem = format!("{} takes {} bytes, {} are given", tensor.name, tensor.bytes(), block.bytes());
                return Err(refused(problem));
            }
            if !block.address().is_multiple_of(ALIGNMENT as u64) {
                return Err(refused(format!("{} is not aligned to {ALIGNMENT} bytes", tensor.name)));
            }
            blocks.push((id, (*block).clone()));
        }
        if workspace.bytes() < self.workspace {
            let (needed, given) = (self.workspace, workspace.bytes());
            return Err(refused(format!("the workspace takes {needed} bytes, {given} are given")));
        }
        let pack = Descriptor::new(&self.library, DescriptorKind::VariantPack)?;
        let values: Box<[f32]> = self.graph.values().map(|(_, value)| value).collect();
        let of_values =
            self.graph.values().zip(&values).map(|((id, _), value)| (id.unique_id(), from_ref(value) as u64));
        let of_blocks = blocks.iter().map(|(id, block)| (id.unique_id(), block.address()));
        let (ids, addresses): (Vec<i64>, Vec<u64>) = of_blocks.chain(of_values).unzip();
        pack.int64s(attribute::PACK_IDS, &ids)?;
        pack.addresses(attribute::PACK_POINTERS, &addresses)?;
        pack.addresses(attribute::PACK_WORKSPACE, &[workspace.address()])?;
        let is_written = |id| self.graph.get(id).role == Role::Output;
        let tensors = blocks.into_iter().map(|(id, block)| (block, is_written(id))).collect();
        let (library, plan, workspace) = (Arc::clone(&self.library), Arc::clone(&self.plan), workspace.clone());
        Ok(Bound { library, pack: pack.finalize()?, plan, tensors, workspace, _values: values })
    }
}

impl Bound {
    /// Its memory but for scratch, and whether it writes it.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (Block, bool)> {
        self.tensors.iter().cloned()
    }

    /// Runs the plan, some time. A graph that records this keeps the memory; the plan must be kept for it.
    ///
    /// # Errors
    /// cuDNN refuses.
    pub fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        let (context, handle) = self.library.device("cudnnBackendExecute")?;
        context.bind()?;
        let blocks = self.tensors.iter().map(|(block, _)| block).chain([&self.workspace]);
        blocks.for_each(|block| stream.keep_block(block));
        // SAFETY: both handles are valid.
        let code = unsafe { (self.library.api.cudnnSetStream)(*handle, stream.raw()) };
        self.library.check("cudnnSetStream", "", code)?;
        // SAFETY: the plan and the pack are finalised; blocks are as large as the plan needs and stay until this is dropped.
        let code = unsafe { (self.library.api.cudnnBackendExecute)(*handle, self.plan.handle, self.pack.handle) };
        self.library.check("cudnnBackendExecute", "", code)
    }
}
