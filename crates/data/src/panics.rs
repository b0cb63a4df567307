//! Panics of libraries at damaged data.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether what panics on this thread becomes an error that says all there is to say.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What `work` returns, or the message with which it panicked.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| message(&*payload))
}

/// The same for a library that panics at damaged files: nothing of it is written to standard error before the error that comes of it.
pub(crate) fn caught_quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = caught(work);
    IS_QUIET.set(false);
    outcome
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
