use std::sync::Mutex;
use std::thread;

/// Calls `work` once for each item, on up to `threads` threads that take the items in order.
pub(super) fn for_each<T: Send>(items: Vec<T>, threads: usize, work: impl Fn(T) + Sync) {
    let threads = threads.clamp(1, items.len().max(1));
    if threads == 1 {
        return items.into_iter().for_each(work);
    }
    let items = Mutex::new(items.into_iter());
    let take = || items.lock().expect("no thread panics while it holds the lock").next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = take() {
                    work(item);
                }
            });
        }
    });
}
