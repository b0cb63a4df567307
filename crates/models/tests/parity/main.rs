//! Comparison with other implementations, by the numbers in `tests/fixtures`.

mod fixtures;
mod resnet;
mod schedules;
