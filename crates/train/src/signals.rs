//! Stopping a run in an orderly way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Signals within this time of the first are the same request.
const TOGETHER: Duration = Duration::from_millis(500);

/// A request to stop, shared between whoever asks and the run.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// A signal that is not raised and that only [`StopSignal::raise`] raises.
    pub fn new() -> Self {
        Self::default()
    }

    /// A signal that SIGINT and SIGTERM (on Windows: Ctrl-C) raise, with a `notice` on standard error. One that comes later ends the
    /// process at once with exit code 130; those that come together are one: `timeout`, shells and batch systems signal a process and its
    /// group. SIGUSR1, by which batch systems say that time is nearly over, raises it too. To be called at most once in a process.
    ///
    /// # Errors
    /// The system refused the handler.
    pub fn from_system(notice: Option<&'static str>) -> io::Result<Self> {
        let signal = Self::new();
        let raised = signal.clone();
        let mut first: Option<Instant> = None;
        let handler = move || match first {
            Some(first) if first.elapsed() > TOGETHER => std::process::exit(130),
            Some(_) => {}
            None => {
                first = Some(Instant::now());
                raised.raise();
                if let Some(notice) = notice {
                    eprintln!("{notice}");
                }
            }
        };
        ctrlc::set_handler(handler).map_err(io::Error::other)?;
        #[cfg(unix)]
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, signal.0.clone())?;
        Ok(signal)
    }

    /// Asks the run to save and stop after the present step, or the present micro-batch of it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether a stop was requested.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
