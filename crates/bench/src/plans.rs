//! Compiled plans of the whole zoo as text: two versions of the compiler make the same plans if `diff` finds no difference.

use crate::workload::{Mode, StepSettings, Work};
use bessemer_ir::passes::recompute::Recompute;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{Target, print_memory, print_plan};
use bessemer_ir::{DType, Graph};
use bessemer_models::ModelError;
use bessemer_train::tasks::registry::{ZooModel, all};

/// Samples of a step: two, so that the batch axis differs from axes of size 1.
const BATCH_SIZE: usize = 2;

/// The step that a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    Train(Variant),
    Infer(Variant),
    /// Scores a batch; only where that is another graph than inference.
    Evaluate,
}

/// What is compiled in another way than by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Default,
    /// A training step of two micro-batches.
    Accumulation,
    /// Pointwise activations, or whole blocks, are computed again in the backward pass.
    Recompute(Recompute),
    /// One kernel an operation.
    OpByOp,
}

/// One plan: a model, a step and a precision.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest {
    model: ZooModel,
    step: StepKind,
    precision: DType,
}

/// A plan as text.
pub struct PlanText {
    /// Kernel calls in order, with operands, types, implementations and costs.
    pub calls: String,
    /// Offsets and sizes in the arena, in bytes.
    pub memory: String,
}

/// All plans: every model in training, inference and, where that is another graph, evaluation, in `fp32`, `bf16` and `fp16`;
/// the smallest models of each family also op by op, with recomputation and with gradient accumulation, in `fp32`.
pub fn plan_requests() -> Vec<PlanRequest> {
    let mut requests = Vec::new();
    for model in all() {
        let mut steps = vec![StepKind::Train(Variant::Default), StepKind::Infer(Variant::Default)];
        if model.family().evaluation_step().is_some() {
            steps.push(StepKind::Evaluate);
        }
        for step in steps {
            for precision in [DType::F32, DType::Bf16, DType::F16] {
                requests.push(PlanRequest { model, step, precision });
            }
        }
        if model.family().representatives().contains(&model.name()) {
            let steps = [
                StepKind::Train(Variant::Accumulation),
                StepKind::Train(Variant::Recompute(Recompute::Pointwise)),
                StepKind::Train(Variant::Recompute(Recompute::Blocks)),
                StepKind::Train(Variant::OpByOp),
                StepKind::Infer(Variant::OpByOp),
            ];
            requests.extend(steps.map(|step| PlanRequest { model, step, precision: DType::F32 }));
        }
    }
    requests
}

impl PlanRequest {
    /// The name of the model.
    pub fn model(&self) -> &'static str {
        self.model.name()
    }

    /// The model, the step, the precision and the variant, joined by dots; unique.
    pub fn name(&self) -> String {
        let (step, variant) = match self.step {
            StepKind::Train(variant) => ("train", variant.suffix()),
            StepKind::Infer(variant) => ("infer", variant.suffix()),
            StepKind::Evaluate => ("eval", ""),
        };
        let precision = match self.precision {
            DType::Bf16 => "bf16",
            DType::F16 => "fp16",
            _ => "fp32",
        };
        format!("{}.{step}.{precision}{variant}", self.model.name())
    }

    /// Compiles the step for a target; nothing runs. Equal on every machine for equal options.
    ///
    /// # Errors
    /// [`ModelError`] if the model does not compile.
    pub fn compile(&self, target: &dyn Target) -> Result<PlanText, ModelError> {
        let variant = match self.step {
            StepKind::Train(variant) | StepKind::Infer(variant) => variant,
            StepKind::Evaluate => Variant::Default,
        };
        let defaults = CompileOptions { precision: self.precision, ..CompileOptions::default() };
        let options = match variant {
            Variant::Default | Variant::Accumulation => defaults,
            Variant::Recompute(recompute) => CompileOptions { recompute, ..defaults },
            Variant::OpByOp => CompileOptions { fuse: false, ..defaults },
        };
        let plan = compile(&self.graph(variant)?, target, &options)?;
        Ok(PlanText { calls: print_plan(&plan), memory: print_memory(&plan) })
    }

    fn graph(&self, variant: Variant) -> Result<Graph, ModelError> {
        let accumulation = if variant == Variant::Accumulation { 2 } else { 1 };
        let mode = if matches!(self.step, StepKind::Train(_)) { Mode::Train } else { Mode::Infer };
        let work = Work {
            model: self.model.name(),
            mode,
            batch_size: BATCH_SIZE,
            precision: self.precision,
            settings: StepSettings { accumulation, ..self.model.family().usual_step(None) },
        };
        match (self.step, self.model.family().evaluation_step()) {
            (StepKind::Evaluate, Some(evaluation)) => Ok(evaluation(&work)?.graph),
            _ => Ok(work.build()?.graph),
        }
    }
}

impl Variant {
    fn suffix(self) -> &'static str {
        match self {
            Variant::Default => "",
            Variant::Accumulation => ".accumulation",
            Variant::Recompute(Recompute::Pointwise) => ".recompute-pointwise",
            Variant::Recompute(_) => ".recompute-blocks",
            Variant::OpByOp => ".op-by-op",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::run::Device;
    use bessemer_train::DeviceOptions;
    use bessemer_train::tasks::registry::FAMILIES;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn device(threads: usize) -> Arc<dyn Device> {
        DeviceOptions { threads, ..DeviceOptions::default() }.open().unwrap()
    }

    fn request(name: &str) -> PlanRequest {
        plan_requests().into_iter().find(|request| request.name() == name).expect("a plan of this name")
    }

    #[test]
    fn names_are_unique_and_every_model_has_its_plans() {
        let requests = plan_requests();
        let names: BTreeSet<String> = requests.iter().map(PlanRequest::name).collect();
        assert_eq!(names.len(), requests.len());
        for model in all().map(|model| model.name()) {
            assert!(names.contains(&format!("{model}.train.bf16")) && names.contains(&format!("{model}.infer.fp32")));
        }
        let representatives = FAMILIES.iter().flat_map(|family| family.representatives());
        representatives.for_each(|model| assert!(names.contains(&format!("{model}.train.fp32.recompute-blocks"))));
    }

    #[test]
    fn two_compilations_give_the_same_text() {
        for name in ["resnet20-cifar.train.fp16", "bert-tiny.train.bf16", "electra-tiny.eval.fp32"] {
            let [first, second] = [(); 2].map(|()| request(name).compile(device(2).target()).unwrap());
            assert!(first.calls == second.calls && first.memory == second.memory, "two plans of {name} differ");
        }
    }

    #[test]
    fn variants_and_precisions_show_in_the_text() {
        let names = [
            "bert-tiny.train.fp32",
            "bert-tiny.train.bf16",
            "bert-tiny.train.fp16",
            "bert-tiny.train.fp32.accumulation",
            "resnet20-cifar.train.fp32",
            "resnet20-cifar.train.fp32.recompute-pointwise",
            "resnet20-cifar.train.fp32.recompute-blocks",
            "bert-tiny.train.fp32.op-by-op",
            "bert-tiny.infer.fp32",
            "bert-tiny.eval.fp32",
        ];
        let texts: BTreeSet<String> =
            names.iter().map(|name| request(name).compile(device(2).target()).unwrap().calls).collect();
        assert_eq!(texts.len(), names.len(), "every plan is another one");
    }

    #[test]
    fn threads_change_memory_alone() {
        let plans = [1, 8].map(|threads| request("resnet18.train.fp32").compile(device(threads).target()));
        let [one, eight] = plans.map(Result::unwrap);
        assert_eq!(one.calls, eight.calls);
        assert_ne!(one.memory, eight.memory);
    }
}
