//! State outside plans: parameters, optimizer state, averages and running statistics, laid out once and shared by all plans
//! that read or replace them.

use super::RunError;
use crate::plan::{Location, Plan, StateTensor};
use crate::shape::TensorType;
use bytemuck::Pod;
use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Where each tensor lies in one run of bytes.
#[derive(Clone, Debug, Default)]
pub struct StateLayout {
    tensors: Vec<StateTensor>,
    offsets: Vec<usize>,
    numbers: HashMap<String, usize>,
    bytes: usize,
}

impl StateLayout {
    /// Lays tensors out one behind the other, each at a multiple of `alignment` bytes. Of a name that is there twice the first
    /// counts.
    pub fn new(tensors: impl IntoIterator<Item = StateTensor>, alignment: usize) -> Self {
        let mut layout = Self::default();
        for tensor in tensors {
            if layout.numbers.contains_key(&tensor.name) {
                continue;
            }
            layout.numbers.insert(tensor.name.clone(), layout.tensors.len());
            layout.offsets.push(layout.bytes);
            layout.bytes += tensor.ty.bytes().next_multiple_of(alignment);
            layout.tensors.push(tensor);
        }
        layout
    }

    /// The state that a plan reads or replaces, and no more.
    pub fn of_plan(plan: &Plan) -> Self {
        Self::new(plan.state.iter().cloned(), plan.alignment)
    }

    /// The tensors in the order in which they are laid out; their positions are the numbers that other methods take.
    pub fn tensors(&self) -> &[StateTensor] {
        &self.tensors
    }

    /// Number of a tensor in [`StateLayout::tensors`].
    ///
    /// # Errors
    /// [`RunError::NoSuchName`].
    pub fn number(&self, name: &str) -> Result<usize, RunError> {
        let known = || self.tensors.iter().map(|tensor| tensor.name.as_str());
        self.numbers.get(name).copied().ok_or_else(|| RunError::no_such_name("state tensor", name, known()))
    }

    /// Type of a tensor.
    ///
    /// # Errors
    /// [`RunError::NoSuchName`].
    pub fn ty(&self, name: &str) -> Result<&TensorType, RunError> {
        Ok(&self.tensors[self.number(name)?].ty)
    }

    /// Number of a tensor of a size in bytes.
    ///
    /// # Errors
    /// [`RunError::NoSuchName`], [`RunError::WrongSize`].
    pub fn sized(&self, name: &str, bytes: usize) -> Result<usize, RunError> {
        let number = self.number(name)?;
        let ty = &self.tensors[number].ty;
        match ty.bytes() == bytes {
            true => Ok(number),
            false => {
                Err(RunError::WrongSize { name: name.to_owned(), ty: ty.clone(), expected: ty.bytes(), actual: bytes })
            }
        }
    }

    /// Byte offset of the tensor of a number.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn offset(&self, number: usize) -> usize {
        self.offsets[number]
    }

    /// The bytes of the tensors of these numbers, in order, with what lies between neighbours: as few ranges as hold them.
    ///
    /// # Panics
    /// If there is none of a number.
    pub fn ranges(&self, numbers: &[usize]) -> Vec<Range<usize>> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let neighbours = numbers.chunk_by(|&number, &next| next == number + 1);
        let range = |run: &[usize]| {
            let last = run[run.len() - 1];
            self.offset(run[0])..self.offset(last) + self.tensors[last].ty.bytes()
        };
        neighbours.map(range).collect()
    }

    /// Bytes of all tensors with what lies between them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Which tensors of a store the state of a plan is: by default those of the same names.
#[derive(Clone, Copy, Default)]
pub struct StateBinding<'a> {
    /// The name in the store of what the plan calls by this name.
    pub rename: Option<&'a dyn Fn(&str) -> String>,
}

/// The tensors of a store that the state of a plan is, by their numbers in its layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundState {
    /// All, in the order of the plan.
    pub numbers: Vec<usize>,
    /// Those that a step replaces.
    pub replaced: Vec<usize>,
    /// Those that it only reads.
    pub invariant: Vec<usize>,
}

impl StateBinding<'_> {
    /// Finds the state of a plan in a layout.
    ///
    /// # Errors
    /// State that the layout lacks or has with another type.
    pub fn bind(&self, plan: &Plan, layout: &StateLayout) -> Result<BoundState, RunError> {
        let numbers = self.resolve(&plan.state, layout)?;
        let updates = plan.graph.updates();
        let is_replaced =
            |number: usize| updates.iter().any(|&(state, _)| plan.location(state) == Location::State(number));
        let (replaced, invariant): (Vec<_>, Vec<_>) = (0..numbers.len()).partition(|&number| is_replaced(number));
        let in_layout = |of_plan: Vec<usize>| of_plan.into_iter().map(|number| numbers[number]).collect();
        let (replaced, invariant) = (in_layout(replaced), in_layout(invariant));
        Ok(BoundState { numbers, replaced, invariant })
    }

    fn resolve(&self, plan: &[StateTensor], layout: &StateLayout) -> Result<Vec<usize>, RunError> {
        let number = |wanted: &StateTensor| {
            let renamed = self.rename.map(|rename| rename(&wanted.name));
            let number = layout.number(renamed.as_deref().unwrap_or(&wanted.name))?;
            let found = &layout.tensors[number];
            if found.ty != wanted.ty {
                let (name, wanted, found) = (found.name.clone(), wanted.ty.clone(), found.ty.clone());
                return Err(RunError::StateType { name, wanted, found });
            }
            Ok(number)
        };
        plan.iter().map(number).collect()
    }
}

/// State in the memory of a device. Executors of the same device read and replace it; nothing else holds a copy.
pub trait StateStore: Send + Sync {
    /// Names, types and offsets of the tensors.
    fn layout(&self) -> &StateLayout;

    /// Copies a tensor, row-major, into `into`; waits for steps that replace it.
    ///
    /// # Errors
    /// No tensor of that name, or one of another size.
    fn read(&self, name: &str, into: &mut [u8]) -> Result<(), RunError>;

    /// Replaces a tensor; waits for steps that read it.
    ///
    /// # Errors
    /// No tensor of that name, or one of another size.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunError>;

    /// Replaces a tensor by that of rank 0 on all ranks of a job, which call it alike. `false`, and nothing is done, on a device that
    /// cannot reach those of other ranks.
    ///
    /// # Errors
    /// No tensor of that name; [`RunError::Ranks`].
    fn take_from_first(&self, _name: &str) -> Result<bool, RunError> {
        Ok(false)
    }

    /// Memory of the device for the content of the tensors of these numbers in the layout.
    ///
    /// # Errors
    /// [`RunError::Memory`].
    fn snapshot(self: Arc<Self>, numbers: &[usize]) -> Result<Box<dyn StateSnapshot>, RunError>;

    /// The device's own type of store, for its executors.
    fn as_any(&self) -> &dyn Any;
}

/// What some tensors of a store held at one moment.
pub trait StateSnapshot: Send {
    /// Takes the content that they have behind the steps submitted so far, which are not waited for.
    ///
    /// # Errors
    /// A device that is lost.
    fn take(&mut self) -> Result<(), RunError>;

    /// Gives them the content that was taken last; zeros before any was.
    ///
    /// # Errors
    /// As [`StateSnapshot::take`].
    fn restore(&mut self) -> Result<(), RunError>;
}

fn read_elements<T: Pod>(state: &dyn StateStore, name: &str) -> Result<Vec<T>, RunError> {
    let mut elements = vec![T::zeroed(); state.layout().ty(name)?.shape.elements()];
    state.read(name, bytemuck::cast_slice_mut(&mut elements))?;
    Ok(elements)
}

/// The elements of an `f32` tensor.
///
/// # Errors
/// As [`StateStore::read`].
pub fn read_f32(state: &dyn StateStore, name: &str) -> Result<Vec<f32>, RunError> {
    read_elements(state, name)
}

/// The elements of an `i32` tensor.
///
/// # Errors
/// As [`StateStore::read`].
pub fn read_i32(state: &dyn StateStore, name: &str) -> Result<Vec<i32>, RunError> {
    read_elements(state, name)
}

/// Replaces the elements of an `f32` tensor.
///
/// # Errors
/// As [`StateStore::write`].
pub fn write_f32(state: &dyn StateStore, name: &str, elements: &[f32]) -> Result<(), RunError> {
    state.write(name, bytemuck::cast_slice(elements))
}

/// Replaces the elements of an `i32` tensor.
///
/// # Errors
/// As [`StateStore::write`].
pub fn write_i32(state: &dyn StateStore, name: &str, elements: &[i32]) -> Result<(), RunError> {
    state.write(name, bytemuck::cast_slice(elements))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, elements: usize) -> StateTensor {
        StateTensor::new(name, &TensorType::f32([elements]), &crate::rules::Rules::DEFAULT)
    }

    #[test]
    fn tensors_lie_apart_and_are_found_by_name() {
        let layout = StateLayout::new([tensor("a", 3), tensor("b", 20), tensor("a", 3)], 64);
        assert_eq!((layout.offset(0), layout.offset(1), layout.bytes()), (0, 64, 192));
        assert_eq!(layout.number("b").unwrap(), 1);
        let four = StateLayout::new(["a", "b", "c", "d"].map(|name| tensor(name, 20)), 64);
        assert_eq!(four.ranges(&[3, 1, 0]), [0..208, 384..464]);
        assert_eq!(four.ranges(&[]), []);
        let error = layout.number("c").unwrap_err().to_string();
        assert_eq!(error, "there is no state tensor named `c`; there are: a, b");
    }

    #[test]
    fn plans_are_bound_by_name_and_type() {
        let layout = StateLayout::new([tensor("w", 3), tensor("ema.w", 3)], 64);
        let averages = |name: &str| format!("ema.{name}");
        let bound = StateBinding { rename: Some(&averages) };
        assert_eq!(bound.resolve(&[tensor("w", 3)], &layout).unwrap(), [1]);
        assert_eq!(StateBinding::default().resolve(&[tensor("w", 3)], &layout).unwrap(), [0]);
        let error = bound.resolve(&[tensor("w", 4)], &layout).unwrap_err().to_string();
        assert_eq!(error, "the plan needs `ema.w` as f32[4]; in the state it is f32[3]");
    }
}
