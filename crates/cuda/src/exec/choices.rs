//! Which ways of libraries the calls of a plan take: what this device chose, or, of several ranks, what rank 0 chose, so that all
//! compute the same bits.

use super::algorithms::Multiplication;
use super::engines::Work;
use super::tuning::Way;
use super::{Gpu, failed, locked, missing};
use crate::error::GpuError;
use bessemer_ir::run::RunError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Mutex;

/// A way that was taken to do something.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    #[serde(flatten)]
    pub way: Way,
    /// The bits of the microseconds that a launch took, where it was measured: whoever compares them must have the same number.
    microseconds: Option<u64>,
}

impl Taken {
    pub(super) fn new(way: Way, microseconds: Option<f64>) -> Self {
        Self { way, microseconds: microseconds.map(f64::to_bits) }
    }

    /// How long a launch took, where it was measured.
    pub(super) fn microseconds(&self) -> Option<f64> {
        self.microseconds.map(f64::from_bits)
    }
}

/// What was taken, by name of what is done; `None` where the library has no way.
pub(super) type AllTaken = BTreeMap<String, Option<Taken>>;

/// Takes what rank 0 took for those of `all` for which nothing is chosen yet; `make` gives nothing for what the library does not offer
/// here. The names of those that are not offered.
///
/// # Errors
/// Those of `make`.
pub(super) fn take<K: Copy + Eq + Hash, C>(
    chosen: &Mutex<HashMap<K, Option<C>>>,
    all: &[K],
    taken: &AllTaken,
    name: impl Fn(&K) -> String,
    make: impl Fn(&K, &Taken) -> Result<Option<C>, GpuError>,
) -> Result<Vec<String>, GpuError> {
    let mut refused = Vec::new();
    for key in missing(chosen, all.iter().copied()) {
        let name = name(&key);
        let made = match taken.get(&name) {
            Some(Some(one)) => make(&key, one)?.map(Some),
            Some(None) => Some(None),
            None => None,
        };
        match made {
            Some(made) => drop(locked(chosen).insert(key, made)),
            None => refused.push(name),
        }
    }
    Ok(refused)
}

/// What rank 0 tells the others of a library.
#[derive(Serialize, Deserialize)]
struct OfLibrary {
    /// The device, with the versions of its driver and of the library.
    device: String,
    taken: AllTaken,
}

/// What rank 0 tells the others of a plan; of a library only if the plan needs it.
#[derive(Serialize, Deserialize)]
struct Told {
    engines: Option<OfLibrary>,
    algorithms: Option<OfLibrary>,
}

impl Gpu {
    /// Chooses engines and algorithms for those that have none yet. Ranks take those of rank 0; one whose device, driver or library is
    /// another one chooses for itself. All ranks must load the same plans in the same order. Nobody else may give work to the stream.
    ///
    /// # Errors
    /// A library has no way, or the file of measurements cannot be read; [`RunError::Ranks`].
    pub(super) fn choose(&self, works: &[Work], products: &[Multiplication]) -> Result<(), RunError> {
        let choose = || {
            self.choose_engines(works.iter().copied())?;
            self.choose_algorithms(products.iter().copied())
        };
        let Some(sums) = &self.sums else { return choose().map_err(failed) };
        let peers = sums.peers();
        if peers.rank() == 0 {
            choose().map_err(failed)?;
            let told = self.told(works, products).map_err(failed)?;
            peers.of_first(Some(serde_json::to_vec(&told).expect("names and numbers")))?;
            return Ok(());
        }
        let told = peers.of_first(None)?;
        let malformed = |error| failed(GpuError::Communicator(format!("rank 0 told no choices: {error}")));
        let told: Told = serde_json::from_slice(&told).map_err(malformed)?;
        self.take(&told, works, products).map_err(failed)?;
        choose().map_err(failed)
    }

    /// The device with a library, as in files of choices.
    fn device_with_cudnn(&self) -> Result<String, GpuError> {
        Ok(self.tuning.device_with(&self.convolutions()?.named()))
    }

    fn device_with_cublaslt(&self) -> Result<String, GpuError> {
        Ok(self.tuning.device_with(&self.products()?.named()))
    }

    fn told(&self, works: &[Work], products: &[Multiplication]) -> Result<Told, GpuError> {
        let engines = || -> Result<OfLibrary, GpuError> {
            Ok(OfLibrary { device: self.device_with_cudnn()?, taken: self.engines.taken(works) })
        };
        let algorithms = || -> Result<OfLibrary, GpuError> {
            Ok(OfLibrary { device: self.device_with_cublaslt()?, taken: self.algorithms.taken(products) })
        };
        Ok(Told {
            engines: (!works.is_empty()).then(engines).transpose()?,
            algorithms: (!products.is_empty()).then(algorithms).transpose()?,
        })
    }

    /// Takes what rank 0 took, as far as there is the same here.
    fn take(&self, told: &Told, works: &[Work], products: &[Multiplication]) -> Result<(), GpuError> {
        if let Some(OfLibrary { device, taken }) = &told.engines {
            let own = self.device_with_cudnn()?;
            match own == *device {
                true => self.warn_of_refused("engines of convolutions", self.take_engines(works, taken)?),
                false => self.warn_of_other("engines of convolutions", &own, device),
            }
        }
        if let Some(OfLibrary { device, taken }) = &told.algorithms {
            let own = self.device_with_cublaslt()?;
            match own == *device {
                true => self.warn_of_refused("algorithms of products", self.take_algorithms(products, taken)?),
                false => self.warn_of_other("algorithms of products", &own, device),
            }
        }
        Ok(())
    }

    fn warn_of_other(&self, what: &str, own: &str, first: &str) {
        self.warnings.add(format!(
            "this rank chooses its own {what}, so that what ranks compute for themselves, such as evaluations, differs in its last bits from \
             that of rank 0: it has {own}, rank 0 {first}"
        ));
    }

    /// `refused` are the names of those that rank 0 took and the library does not offer here.
    fn warn_of_refused(&self, what: &str, refused: Vec<String>) {
        if let Some(first) = refused.first() {
            self.warnings.add(format!(
                "{} {what} of rank 0 are not offered to this rank, which chooses others, so that results differ in their last bits, for \
                 one for {first}",
                refused.len()
            ));
        }
    }
}
