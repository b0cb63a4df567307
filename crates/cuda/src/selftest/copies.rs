//! How fast bytes move.

use super::Figure;
use super::runner::Runner;
use crate::error::GpuError;
use std::time::Duration;

const TIMES: usize = 10;

/// Copies within the device, which read and write every byte, and both ways between host and device.
pub(super) fn measure(runner: &Runner, bytes: usize, figures: &mut Vec<Figure>) -> Result<(), GpuError> {
    let (context, stream) = (&runner.context, &runner.stream);
    let (free, total) = context.memory()?;
    figures.push(Figure::new("free memory", free as f64, "bytes"));
    figures.push(Figure::new("memory", total as f64, "bytes"));
    let arena = context.arena(2 * bytes)?;
    let (from, to) = (arena.block(0, bytes)?, arena.block(bytes, bytes)?);
    let (source, mut target) = (context.pinned(bytes)?, context.pinned(bytes)?);
    let timer = context.timer()?;
    let best = |work: &mut dyn FnMut() -> Result<(), GpuError>| {
        work()?;
        let mut best = Duration::MAX;
        for _ in 0..TIMES {
            best = best.min(timer.time(stream, &mut *work)?);
        }
        Ok::<f64, GpuError>(best.as_secs_f64())
    };
    let rate = |moved: usize, seconds: f64| moved as f64 / seconds / 1e9;
    stream.fill(&from, 1)?;
    let within = best(&mut || stream.copy(&from, &to))?;
    figures.push(Figure::new("device to device, read and written", rate(2 * bytes, within), "GB/s"));
    let down = best(&mut || stream.copy_in(&source, &from))?;
    figures.push(Figure::new("host to device", rate(bytes, down), "GB/s"));
    let up = best(&mut || stream.copy_out(&from, &mut target))?;
    figures.push(Figure::new("device to host", rate(bytes, up), "GB/s"));
    Ok(())
}
