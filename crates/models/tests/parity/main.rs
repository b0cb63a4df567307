//! Comparison with other implementations, by the numbers in `tests/fixtures`.

mod bert;
mod case;
mod electra;
mod fixtures;
mod resnet;
mod schedules;
