//! Text to pre-train on: tokens, instances, data sets, and what is wrong with any of them.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod electra;
mod imported;
mod instances;
mod prepared;
mod statistics;
mod tokens;
mod world;
