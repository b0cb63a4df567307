//! Comparison with other implementations, by the numbers in `tests/fixtures`.

mod bert;
mod case;
mod efficientdet;
mod efficientnet;
mod electra;
mod fixtures;
mod images;
mod maskrcnn;
mod resnet;
mod schedules;
