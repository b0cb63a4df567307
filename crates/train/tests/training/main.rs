//! Training from recipe to checkpoint, of each task: one program, so that short tests run beside long ones.

mod common;
mod detection;
mod efficientnet;
mod electra;
mod kill;
mod maskrcnn;
mod old_runs;
mod pretraining;
mod ranks;
mod recipes;
mod squad;
mod torch_files;
mod trainer;
