use std::sync::Mutex;
use std::thread;

/// Does each piece of work once, on up to `threads` threads that take the pieces in order.
pub(super) fn for_each<T: Send>(pieces: Vec<T>, threads: usize, work: impl Fn(T) + Sync) {
    let threads = threads.clamp(1, pieces.len().max(1));
    if threads == 1 {
        return pieces.into_iter().for_each(work);
    }
    let pieces = Mutex::new(pieces.into_iter());
    let take = || pieces.lock().expect("no thread panics while it holds the lock").next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(piece) = take() {
                    work(piece);
                }
            });
        }
    });
}
