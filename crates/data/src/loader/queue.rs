use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::{Batch, LoaderOptions, OnBadSample, SkippedSample};
use crate::{DataError, Dataset, Philox, Position, Purpose, Sampler, Scratch};

/// The batches between workers and caller, in order. Workers take samples one by one, so that all of them work on the
/// batch that is needed first.
pub(super) struct Queue {
    dataset: Arc<dyn Dataset>,
    sampler: Sampler,
    options: LoaderOptions,
    state: Mutex<State>,
    batch_done: Condvar,
    room_made: Condvar,
}

struct State {
    /// Batches opened and not yet taken, the next one to take at the front.
    open: VecDeque<Arc<OpenBatch>>,
    /// Samples of the last open batch already handed to workers.
    assigned: usize,
    /// The batch to open next.
    next: Position,
    /// Order of the samples in the epoch of the last open batch.
    order: Vec<u32>,
    order_epoch: Option<u32>,
    free: Vec<(Vec<u8>, Vec<i32>)>,
    stopped: bool,
}

struct OpenBatch {
    position: Position,
    real: usize,
    unfinished: AtomicUsize,
    content: Mutex<Content>,
}

struct Content {
    images: Vec<u8>,
    labels: Vec<i32>,
    skipped: Vec<(usize, SkippedSample)>,
    /// The error of the foremost bad sample, with its place.
    error: Option<(usize, DataError)>,
}

struct Job {
    batch: Arc<OpenBatch>,
    place: usize,
    index: usize,
}

struct Loaded {
    label: u32,
    skipped: Vec<SkippedSample>,
}

impl Queue {
    pub(super) fn new(dataset: Arc<dyn Dataset>, sampler: Sampler, options: LoaderOptions) -> Self {
        let state = State {
            open: VecDeque::new(),
            assigned: 0,
            next: options.start,
            order: Vec::new(),
            order_epoch: None,
            free: Vec::new(),
            stopped: false,
        };
        let (batch_done, room_made) = (Condvar::new(), Condvar::new());
        Self { dataset, sampler, options, state: Mutex::new(state), batch_done, room_made }
    }

    pub(super) fn batches(&self) -> usize {
        self.sampler.batches()
    }

    pub(super) fn end_epoch(&self) -> u32 {
        self.options.end_epoch
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.room_made.notify_all();
    }

    pub(super) fn recycle(&self, images: Vec<u8>, labels: Vec<i32>) {
        let fits = images.len() == self.batch_bytes() && labels.len() == self.sampler.options().batch_size;
        let mut state = lock(&self.state);
        if fits && state.free.len() <= self.options.prefetch {
            state.free.push((images, labels));
        }
    }

    /// Waits for the front batch and removes it.
    pub(super) fn take(&self) -> Result<Batch, DataError> {
        let unfinished =
            |state: &mut State| state.open.front().is_none_or(|batch| batch.unfinished.load(Ordering::Acquire) > 0);
        let state = self.batch_done.wait_while(lock(&self.state), unfinished);
        let mut state = state.expect("no worker panics while it holds the lock");
        let batch = state.open.pop_front().expect("waited for a batch");
        drop(state);
        self.room_made.notify_all();
        self.finish(&batch)
    }

    fn finish(&self, batch: &OpenBatch) -> Result<Batch, DataError> {
        let content = &mut *lock(&batch.content);
        let mut images = std::mem::take(&mut content.images);
        let mut labels = std::mem::take(&mut content.labels);
        if let Some((_, error)) = content.error.take() {
            return Err(error);
        }
        images[batch.real * self.dataset.sample_bytes()..].fill(0);
        labels[batch.real..].fill(0);
        content.skipped.sort_by_key(|&(place, _)| place);
        let skipped = content.skipped.drain(..).map(|(_, sample)| sample).collect();
        let Position { epoch, batch: index } = batch.position;
        Ok(Batch { images, labels, real: batch.real, epoch, index, skipped })
    }

    /// Loads samples until there are no more or the queue is stopped.
    pub(super) fn work(&self) {
        let mut scratch = Scratch::default();
        let mut sample = vec![0; self.dataset.sample_bytes()];
        while let Some(job) = self.next_job() {
            let epoch = job.batch.position.epoch;
            let result = self.load(epoch, job.index, &mut scratch, &mut sample);
            job.batch.store(job.place, result, &sample);
            if job.batch.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _state = lock(&self.state);
                self.batch_done.notify_all();
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if state.stopped {
                return None;
            }
            if let Some(batch) = state.open.back().filter(|batch| state.assigned < batch.real).cloned() {
                return Some(self.assign(&mut state, batch));
            }
            if state.next.batch == self.batches() {
                state.next = Position { epoch: state.next.epoch.saturating_add(1), batch: 0 };
            }
            if state.next.epoch >= self.options.end_epoch {
                return None;
            }
            if state.open.len() < self.options.prefetch {
                self.open_batch(&mut state);
            } else {
                state = self.room_made.wait(state).expect("no worker panics while it holds the lock");
            }
        }
    }

    fn assign(&self, state: &mut State, batch: Arc<OpenBatch>) -> Job {
        let place = state.assigned;
        state.assigned += 1;
        let index = state.order[batch.position.batch * self.sampler.options().batch_size + place];
        Job { batch, place, index: index as usize }
    }

    fn open_batch(&self, state: &mut State) {
        let position = state.next;
        if state.order_epoch != Some(position.epoch) {
            state.order = self.sampler.order(position.epoch);
            state.order_epoch = Some(position.epoch);
        }
        let batch_size = self.sampler.options().batch_size;
        let real = batch_size.min(state.order.len() - position.batch * batch_size);
        let buffers = state.free.pop();
        let (images, labels) = buffers.unwrap_or_else(|| (vec![0; self.batch_bytes()], vec![0; batch_size]));
        let content = Mutex::new(Content { images, labels, skipped: Vec::new(), error: None });
        state.open.push_back(Arc::new(OpenBatch { position, real, unfinished: AtomicUsize::new(real), content }));
        state.assigned = 0;
        state.next.batch += 1;
        self.room_made.notify_all();
    }

    fn batch_bytes(&self) -> usize {
        self.sampler.options().batch_size * self.dataset.sample_bytes()
    }

    /// Loads sample `index`, or the next good one in the order of the data set where bad ones are skipped.
    fn load(&self, epoch: u32, index: usize, scratch: &mut Scratch, sample: &mut [u8]) -> Result<Loaded, DataError> {
        let samples = self.dataset.len();
        let mut bad: Vec<(usize, DataError)> = Vec::new();
        for candidate in (index..samples).chain(0..index) {
            let mut rng = Philox::new(self.options.seed, Purpose::Augment, epoch, index as u64);
            match self.load_guarded(candidate, &mut rng, scratch, sample) {
                Ok(label) => {
                    let replaced = |(index, error): (usize, DataError)| SkippedSample {
                        index,
                        replaced_by: candidate,
                        reason: error.to_string(),
                    };
                    return Ok(Loaded { label, skipped: bad.into_iter().map(replaced).collect() });
                }
                Err(error) if self.options.on_bad_sample == OnBadSample::Stop => return Err(error),
                Err(error) => bad.push((candidate, error)),
            }
        }
        let (_, last) = bad.pop().expect("a sampler has at least one sample");
        Err(DataError::NothingReadable { samples, last: Box::new(last) })
    }

    fn load_guarded(
        &self,
        index: usize,
        rng: &mut Philox,
        scratch: &mut Scratch,
        sample: &mut [u8],
    ) -> Result<u32, DataError> {
        let load = AssertUnwindSafe(|| self.dataset.load(index, rng, scratch, sample));
        catch_unwind(load)
            .unwrap_or_else(|payload| Err(DataError::Panicked { index, message: panic_message(&*payload) }))
    }
}

impl OpenBatch {
    fn store(&self, place: usize, result: Result<Loaded, DataError>, sample: &[u8]) {
        let mut content = lock(&self.content);
        match result {
            Ok(loaded) => {
                content.images[place * sample.len()..][..sample.len()].copy_from_slice(sample);
                content.labels[place] = loaded.label as i32;
                content.skipped.extend(loaded.skipped.into_iter().map(|skipped| (place, skipped)));
            }
            Err(error) => {
                if content.error.as_ref().is_none_or(|&(foremost, _)| place < foremost) {
                    content.error = Some((place, error));
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
