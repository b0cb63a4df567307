//! Whole training steps: layers, optimizers and schedules against other implementations, and steps of several micro-batches.

mod accumulation;
mod layers;
mod optimizers;
mod ranks;
mod run;
