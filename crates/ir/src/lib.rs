//! The intermediate representation: types, operations, graphs, autodiff, passes, plans, and the reference interpreter.
#![forbid(unsafe_code)]

pub mod autodiff;
pub mod builder;
pub mod dtype;
pub mod graph;
pub mod ops;
pub mod passes;
pub mod philox;
pub mod plan;
pub mod reference;
pub mod rules;
pub mod run;
pub mod shape;
pub mod verify;

pub use dtype::DType;
pub use graph::{Graph, GraphError, NodeId, Role, Value};
pub use ops::{Cost, Op};
pub use shape::{Shape, TensorType};
