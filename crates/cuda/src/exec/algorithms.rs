//! The algorithms of cuBLASLt that do products, alone and with what is done in their pass: one for each distinct product, the
//! heuristics' first one or the fastest one that was measured.

use super::choices::{AllTaken, Taken, take};
use super::measure::{Operand, faster};
use super::tuning::{Choice, Way};
use super::{Gpu, PRODUCT_WORKSPACE, locked, missing};
use crate::cublaslt::{Algorithm, CublasLt, Epilogue, Operands, Product};
use crate::driver::Block;
use crate::error::GpuError;
use crate::lower::Step;
use bessemer_ir::DType;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for the measurements of a plan, of which the last one may take longer.
const BUDGET: Duration = Duration::from_secs(10);
/// Algorithms that are measured for a product.
const MEASURED: usize = 8;

/// A product with what is done in its pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Multiplication {
    pub product: Product,
    pub epilogue: Epilogue<()>,
}

/// The algorithm that was chosen, and the microseconds of a launch of it, where it was measured.
#[derive(Clone, Copy)]
struct Chosen {
    algorithm: Algorithm,
    microseconds: Option<f64>,
}

/// The algorithms that were chosen.
#[derive(Default)]
pub(super) struct Algorithms {
    /// `None` for what the library has no way to do in the pass of a product.
    chosen: Mutex<HashMap<Multiplication, Option<Chosen>>>,
    /// Why there is no measurement.
    reasons: Mutex<HashMap<Multiplication, String>>,
}

impl Algorithms {
    /// The algorithm for a multiplication that was [chosen](Gpu::choose_algorithms) for.
    pub(super) fn get(&self, of: &Multiplication) -> Option<Algorithm> {
        locked(&self.chosen)[of].map(|chosen| chosen.algorithm)
    }

    /// Whether a product with what is done in its pass is preferred to one with less, whose kernels behind it take at least `saved`
    /// longer: if there is a way, and it was measured to be faster; where it is `expected` to be, unless it was measured to be slower.
    pub(super) fn prefers(
        &self,
        fused: &Multiplication,
        other: &Multiplication,
        saved: Duration,
        expected: bool,
    ) -> bool {
        let chosen = locked(&self.chosen);
        let (Some(fused), Some(other)) = (chosen[fused], chosen[other]) else { return chosen[fused].is_some() };
        let times = fused.microseconds.zip(other.microseconds);
        times.map_or(expected, |(fused, other)| fused <= other + saved.as_secs_f64() * 1e6)
    }

    /// What was chosen for these, for other ranks.
    pub(super) fn taken(&self, all: &[Multiplication]) -> AllTaken {
        let chosen = locked(&self.chosen);
        let taken = |Chosen { algorithm, microseconds }: &Chosen| {
            let way = Way::Algorithm { algorithm: algorithm.words() };
            Taken::new(way, *microseconds)
        };
        all.iter().filter_map(|of| Some((of.name(), chosen.get(of)?.as_ref().map(taken)))).collect()
    }

    /// Why there is no measurement of these, where it failed, by name.
    pub(super) fn reasons(&self, all: impl IntoIterator<Item = Multiplication>) -> BTreeMap<String, String> {
        let reasons = locked(&self.reasons);
        all.into_iter().filter_map(|of| Some((of.name(), reasons.get(&of)?.clone()))).collect()
    }

    /// The algorithms that were chosen for these, by name.
    pub(super) fn of(&self, all: impl IntoIterator<Item = Multiplication>) -> BTreeMap<String, String> {
        let chosen = locked(&self.chosen);
        let named = |of: Multiplication| {
            let words = chosen.get(&of)?.as_ref()?.algorithm.words();
            let used = words.iter().rposition(|word| *word != 0).map_or(1, |last| last + 1);
            let words: Vec<String> = words[..used].iter().map(|word| format!("{word:x}")).collect();
            Some((of.name(), format!("algorithm {} of cuBLASLt", words.join("-"))))
        };
        all.into_iter().filter_map(named).collect()
    }
}

impl Multiplication {
    /// All multiplications of these steps, in a plan that allows TF32 or does not.
    pub(super) fn all(steps: &[Step], tf32: bool) -> impl Iterator<Item = Multiplication> {
        steps.iter().filter_map(move |step| match step {
            Step::Product { product, epilogue, .. } => Some(Self::new(product, epilogue, tf32)),
            _ => None,
        })
    }

    pub(super) fn new<M>(product: &Product, epilogue: &Epilogue<M>, tf32: bool) -> Multiplication {
        Multiplication { product: Product { tf32, ..*product }, epilogue: epilogue.kind() }
    }

    /// All that it depends on, as a key of files.
    fn name(&self) -> String {
        format!("{}, {}", self.product.name(), self.epilogue.name())
    }

    fn kept(&self, library: &Arc<CublasLt>, way: &Way) -> Result<Option<Algorithm>, GpuError> {
        match way {
            Way::Algorithm { algorithm } => library.kept(&self.product, &self.epilogue, *algorithm, PRODUCT_WORKSPACE),
            Way::Engine { .. } => Ok(None),
        }
    }
}

impl Gpu {
    /// Takes the algorithms that rank 0 took, for those multiplications that have none yet. The names of those that cuBLASLt does not
    /// offer here.
    ///
    /// # Errors
    /// cuBLASLt cannot be opened, or refuses to say how it multiplies.
    pub(super) fn take_algorithms(&self, all: &[Multiplication], taken: &AllTaken) -> Result<Vec<String>, GpuError> {
        let library = self.products()?;
        take(&self.algorithms.chosen, all, taken, Multiplication::name, |one, taken| {
            let algorithm = one.kept(&library, &taken.way)?;
            Ok(algorithm.map(|algorithm| Chosen { algorithm, microseconds: taken.microseconds() }))
        })
    }

    /// Chooses algorithms for those multiplications that have none yet. Nobody else may give work to the stream.
    ///
    /// # Errors
    /// cuBLASLt refuses to say how it multiplies, or the file of measurements cannot be read.
    pub(super) fn choose_algorithms(&self, all: impl IntoIterator<Item = Multiplication>) -> Result<(), GpuError> {
        let mut missing = missing(&self.algorithms.chosen, all);
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_by_key(|one| Reverse(one.product.flops()));
        let library = self.products()?;
        let known = self.tuning.known(&library.named())?;
        let begun = Instant::now();
        let mut measured = Vec::new();
        let mut failures: Vec<(Multiplication, GpuError)> = Vec::new();
        for one in missing {
            let kept = known.as_ref().and_then(|known| known.get(&one.name()));
            if let Some(choice) = kept
                && let Some(algorithm) = one.kept(&library, &choice.way)?
            {
                let chosen = Chosen { algorithm, microseconds: Some(choice.microseconds) };
                locked(&self.algorithms.chosen).insert(one, Some(chosen));
                continue;
            }
            let is_measured = known.is_some() && begun.elapsed() <= BUDGET;
            let most = if is_measured { MEASURED } else { 1 };
            let algorithms = library.algorithms(&one.product, &one.epilogue, PRODUCT_WORKSPACE, most)?;
            let first = algorithms.first().map(|&algorithm| Chosen { algorithm, microseconds: None });
            // What cannot be measured is left to the heuristics.
            let fastest = match is_measured && first.is_some() {
                true => self.fastest(&library, &one, &algorithms),
                false => Ok(None),
            };
            let fastest = fastest.unwrap_or_else(|error| {
                failures.push((one, error));
                None
            });
            if let Some(Chosen { algorithm, microseconds: Some(microseconds) }) = fastest {
                let way = Way::Algorithm { algorithm: algorithm.words() };
                measured.push((one.name(), Choice { way, microseconds }));
            }
            locked(&self.algorithms.chosen).insert(one, fastest.or(first));
        }
        if let Some((one, error)) = failures.first() {
            self.warnings.add(format!(
                "{} products could not be measured, and are done by cuBLASLt's first proposals, such as {}: {error}",
                failures.len(),
                one.name()
            ));
        }
        let failures = failures.into_iter().map(|(one, error)| (one, error.to_string()));
        locked(&self.algorithms.reasons).extend(failures);
        if let Some(known) = known {
            self.keep(&known, measured);
        }
        Ok(())
    }

    /// The fastest one of these algorithms.
    ///
    /// # Errors
    /// None of them could be measured because of this.
    fn fastest(
        &self,
        library: &Arc<CublasLt>,
        of: &Multiplication,
        algorithms: &[Algorithm],
    ) -> Result<Option<Chosen>, GpuError> {
        let product = of.product;
        let [x, w, y] = product.bytes();
        // Biases and auxiliary memory are no larger than the result, or than a number.
        let others = of.epilogue.memory().map(|_| (y.max(DType::F32.size()), product.output));
        let operands = [(x, product.inputs), (w, product.inputs), (y, product.output)].into_iter().chain(others);
        let operands: Vec<Operand> = operands.map(|(bytes, ty)| Operand { bytes, ty, is_filled: true }).collect();
        let memory = self.memory_to_measure("operands of products that are measured", &operands, PRODUCT_WORKSPACE)?;
        let ([x, w, y], others) = memory.operands.split_first_chunk().expect("a product has three");
        let mut others = others.iter();
        let epilogue = of.epilogue.with(|()| Ok::<&Block, GpuError>(others.next().expect("there is one for each")))?;
        let operands = Operands { x, w, y, workspace: &memory.scratch };
        let prepared = library.prepare_by(algorithms.to_vec(), product, operands, epilogue)?;
        let timer = self.context.timer()?;
        let mut fastest: Option<(Algorithm, Duration)> = None;
        let mut failed = None;
        for (number, algorithm) in algorithms.iter().enumerate() {
            let so_far = fastest.map(|(_, time)| time);
            self.context.note(format!(", when algorithm {number} is measured for {}", of.name()));
            match faster(&timer, &self.stream, so_far, &|| prepared.launch(&self.stream, number)) {
                Ok(Some(time)) => fastest = Some((*algorithm, time)),
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.stream.synchronize()?;
        self.context.note(String::new());
        if let (None, Some(error)) = (fastest, failed) {
            return Err(error);
        }
        let chosen = |(algorithm, time): (Algorithm, Duration)| Chosen {
            algorithm,
            microseconds: Some(time.as_secs_f64() * 1e6),
        };
        Ok(fastest.map(chosen))
    }
}
