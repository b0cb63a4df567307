//! Questions about paragraphs: files, windows, answers, and what is wrong with any of them.

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod features;
mod files;
mod reader;
mod real;
mod world;
