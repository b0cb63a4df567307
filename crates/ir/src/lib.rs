//! The intermediate representation: types, operations, graphs, autodiff, passes, plans, and the reference interpreter.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod autodiff;
pub mod builder;
pub mod dtype;
pub mod graph;
pub mod ops;
pub mod passes;
pub mod plan;
pub mod reference;
pub mod rules;
pub mod run;
pub mod shape;
pub mod verify;

pub use bessemer_philox as philox;
pub use dtype::DType;
pub use graph::{Graph, GraphError, NodeId, Role, Value};
pub use ops::{Cost, Op, OpError};
pub use shape::{Shape, TensorType};
