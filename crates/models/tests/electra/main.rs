//! ELECTRA: counts of the published sizes, graphs of all steps, names of checkpoints.

mod cpu;
mod pretraining;
mod sizes;
mod squad;
mod support;
