//! A graph under construction, with the tensors it keeps and the scope that names them.

use crate::Result;
use crate::init::Init;
use crate::params::{ParamKind, ParamLayout, ParamSpec};
use crate::ranks::{Ranks, over_ranks};
use bessemer_ir::ops::collective::Wire;
use bessemer_ir::{DType, Graph, Role, Shape, TensorType, Value};

/// What the graph is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Statistics of the batch; running statistics are updated.
    Train,
    /// Running statistics.
    Infer,
}

/// The state that counts micro-batches.
pub const MICRO_STEP: &str = "micro_step";

/// Adds layers to a graph. The scope gives both the path of the nodes and the names of the parameters.
#[derive(Debug)]
pub struct Builder {
    /// The graph so far; operations without parameters are added to it directly.
    pub graph: Graph,
    mode: Mode,
    ranks: Ranks,
    frozen: bool,
    specs: Vec<ParamSpec>,
}

impl Builder {
    /// An empty graph at the root scope.
    pub fn new(mode: Mode) -> Self {
        let ranks = Ranks::default();
        Builder { graph: Graph::new(), mode, ranks, frozen: false, specs: Vec::new() }
    }

    /// An empty graph for training by one of several ranks, those of the [`TrainConfig`](crate::TrainConfig) that completes it.
    pub fn training(ranks: Ranks) -> Self {
        Builder { ranks, ..Builder::new(Mode::Train) }
    }

    /// What the graph is for, which decides about dropout and about the statistics of batch norms.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The number of ranks over whose samples batch norms take mean and variance.
    pub(crate) fn ranks_of_norms(&self) -> usize {
        self.ranks.sharing(self.ranks.norms)
    }

    /// For the mean of weighted samples: what this rank's sum is divided by, from the `weight f32[]` of its samples, and the factor of
    /// the quotient. Where means are taken over all ranks these are the sum of the ranks' weights and their number, so that the mean of
    /// what the ranks get is that of all samples.
    ///
    /// # Errors
    /// A weight of another type.
    pub fn weight_of_mean(&mut self, weight: Value) -> Result<(Value, f64)> {
        let ranks = self.ranks.sharing(self.ranks.means);
        Ok((over_ranks(&mut self.graph, ranks, Wire::F32, weight)?, ranks as f64))
    }

    /// The tensors declared so far, in order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// The graph and the tensors it keeps.
    pub fn finish(self) -> (Graph, Vec<ParamSpec>) {
        (self.graph, self.specs)
    }

    /// Runs `body` inside the scope `name`.
    pub fn scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Builder) -> T) -> T {
        self.graph.enter_scope(name);
        let result = body(self);
        self.graph.leave_scope();
        result
    }

    /// Runs `body`, in which parameters are declared as state: no gradient is computed for them, the optimizer and averages
    /// leave them alone, and batch norms keep their running statistics. Names and kinds stay the same.
    pub fn frozen<T>(&mut self, body: impl FnOnce(&mut Builder) -> T) -> T {
        let outer = std::mem::replace(&mut self.frozen, true);
        let result = body(self);
        self.frozen = outer;
        result
    }

    /// Runs `body`, [frozen](Builder::frozen) if `condition` holds.
    pub fn frozen_if<T>(&mut self, condition: bool, body: impl FnOnce(&mut Builder) -> T) -> T {
        if condition { self.frozen(body) } else { body(self) }
    }

    /// Whether parameters are declared as state here.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// An input that the caller writes before each step.
    pub fn feed(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value> {
        self.graph.input(name, Role::Feed, TensorType::new(dtype, shape))
    }

    /// Weight of a matrix product, `f32[out, in]`.
    pub fn weight(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Value> {
        self.tensor(name, TensorType::f32(shape), ParamLayout::Plain, ParamKind::Weight, self.trained(), init)
    }

    /// Weight of a matrix product with images of `pixels` pixels, `f32[out, in]`, whose inputs are in the order `(H, W, C)`.
    pub fn weight_of_image(&mut self, name: &str, shape: impl Into<Shape>, pixels: usize, init: Init) -> Result<Value> {
        let layout = ParamLayout::LinearOfImage { pixels };
        self.tensor(name, TensorType::f32(shape), layout, ParamKind::Weight, self.trained(), init)
    }

    /// Weight of a convolution, `f32[KH, KW, CI, CO]`.
    pub fn kernel(&mut self, name: &str, shape: [usize; 4], init: Init) -> Result<Value> {
        self.tensor(name, TensorType::f32(shape), ParamLayout::ConvHwio, ParamKind::Weight, self.trained(), init)
    }

    /// Bias of a layer, `f32[size]`.
    pub fn bias(&mut self, name: &str, size: usize, init: Init) -> Result<Value> {
        self.tensor(name, TensorType::f32([size]), ParamLayout::Plain, ParamKind::Bias, self.trained(), init)
    }

    /// Scale or offset of a normalisation.
    pub fn norm(&mut self, name: &str, size: usize, init: Init) -> Result<Value> {
        self.tensor(name, TensorType::f32([size]), ParamLayout::Plain, ParamKind::Norm, self.trained(), init)
    }

    /// Running statistic of a normalisation.
    pub fn statistic(&mut self, name: &str, size: usize, init: Init) -> Result<Value> {
        self.tensor(name, TensorType::f32([size]), ParamLayout::Plain, ParamKind::Statistic, Role::State, init)
    }

    /// A tensor of the optimizer, zero at first, whose name the scope does not prefix. `layout` is that of the parameter it
    /// belongs to.
    pub fn optimizer_state(
        &mut self,
        name: &str,
        ty: TensorType,
        layout: ParamLayout,
        kind: ParamKind,
    ) -> Result<Value> {
        self.named(name.to_string(), ty, layout, kind, Role::State, Init::Zeros)
    }

    /// One number of the optimizer, `f32[]`, whose name the scope does not prefix.
    pub fn scalar_state(&mut self, name: &str, init: Init) -> Result<Value> {
        self.named(name.to_string(), TensorType::f32([]), ParamLayout::Plain, ParamKind::Optimizer, Role::State, init)
    }

    /// The number of this micro-batch in the whole run, `i32[]`, in the state `micro_step`: what random numbers of a step are keyed by.
    /// Of several ranks each has its own. It counts skipped steps as well, and after 2^24 - 1, the last number that arithmetic in `f32` can count to, begins at 0
    /// again.
    pub fn micro_step(&mut self) -> Result<Value> {
        match self.graph.find_input(MICRO_STEP) {
            Some(counter) => Ok(counter),
            None => {
                let ty = TensorType::new(DType::I32, []);
                self.optimizer_state(MICRO_STEP, ty, ParamLayout::Plain, ParamKind::Optimizer)
            }
        }
    }

    /// The role of a parameter that is declared here.
    fn trained(&self) -> Role {
        if self.frozen { Role::State } else { Role::Parameter }
    }

    fn tensor(
        &mut self,
        name: &str,
        ty: TensorType,
        layout: ParamLayout,
        kind: ParamKind,
        role: Role,
        init: Init,
    ) -> Result<Value> {
        let name = self.graph.scope().chain([name]).collect::<Vec<_>>().join(".");
        self.named(name, ty, layout, kind, role, init)
    }

    fn named(
        &mut self,
        name: String,
        ty: TensorType,
        layout: ParamLayout,
        kind: ParamKind,
        role: Role,
        init: Init,
    ) -> Result<Value> {
        let value = self.graph.input(&name, role, ty.clone())?;
        self.specs.push(ParamSpec { name, ty, layout, kind, role, init, value });
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::GraphError;

    #[test]
    fn scopes_name_parameters_and_nodes() {
        let mut b = Builder::new(Mode::Infer);
        let x = b.feed("x", DType::F32, [2]).expect("a new name");
        let y = b.scope("layer1", |b| {
            let bias = b.scope("0", |b| b.bias("bias", 2, Init::Ones)).expect("a new name");
            b.graph.add(x, bias).expect("shapes agree")
        });
        let z = b.graph.relu(y).expect("a float");
        assert_eq!(b.specs()[0].name, "layer1.0.bias");
        assert_eq!(b.graph.find_input("layer1.0.bias"), Some(b.specs()[0].value));
        assert_eq!(b.graph.path(y.node), "layer1");
        assert_eq!(b.graph.path(z.node), "");
    }

    #[test]
    fn names_are_unique() {
        let mut b = Builder::new(Mode::Infer);
        b.bias("bias", 2, Init::Zeros).expect("a new name");
        assert_eq!(b.bias("bias", 2, Init::Zeros), Err(GraphError::DuplicateName("bias".to_string())));
        assert_eq!(b.specs().len(), 1);
    }
}
