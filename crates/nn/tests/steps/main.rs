//! Whole training steps: optimizers and schedules against other implementations, and steps of several micro-batches.

mod accumulation;
mod optimizers;
mod run;
