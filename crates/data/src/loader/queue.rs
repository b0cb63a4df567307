use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use super::{Batch, LoaderOptions, OnBadSample, SampleKey, Samples, SkippedSample, Stage, StageTimes};
use crate::feeds::Field;
use crate::panics::caught;
use crate::{BatchRange, DataError, Feeds, Position, Sampler};

/// The batches between workers and caller, in order. Workers take samples one by one, so that all of them work on the
/// batch that is needed first.
pub(super) struct Queue<S: Samples + ?Sized> {
    samples: Arc<S>,
    sampler: Sampler,
    options: LoaderOptions,
    /// The arrays of every batch.
    fields: Vec<Field>,
    state: Mutex<State>,
    stages: Mutex<StageTimes>,
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
    free: Vec<Feeds>,
    stopped: bool,
}

struct OpenBatch {
    position: Position,
    samples: usize,
    unfinished: AtomicUsize,
    filling: Mutex<Filling>,
}

struct Filling {
    /// There until the batch is taken.
    feeds: Option<Feeds>,
    skipped: Vec<(usize, SkippedSample)>,
    /// The error of the foremost bad sample, with its place.
    error: Option<(usize, DataError)>,
}

struct Job {
    batch: Arc<OpenBatch>,
    place: usize,
    index: usize,
}

impl<S: Samples + ?Sized> Queue<S> {
    pub(super) fn new(samples: Arc<S>, sampler: Sampler, options: LoaderOptions) -> Self {
        let state = State {
            open: VecDeque::new(),
            assigned: 0,
            next: options.range.start.later(options.range.share.index, sampler.batches()),
            order: Vec::new(),
            order_epoch: None,
            free: Vec::new(),
            stopped: false,
        };
        let (batch_done, room_made) = (Condvar::new(), Condvar::new());
        let fields = samples.fields();
        let (state, stages) = (Mutex::new(state), Mutex::default());
        Self { samples, sampler, options, fields, state, stages, batch_done, room_made }
    }

    pub(super) fn batches(&self) -> usize {
        self.sampler.batches()
    }

    pub(super) fn range(&self) -> &BatchRange {
        &self.options.range
    }

    /// Time of the workers so far.
    pub(super) fn stages(&self) -> StageTimes {
        *lock(&self.stages)
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.room_made.notify_all();
    }

    pub(super) fn recycle(&self, feeds: Feeds) {
        let Some(feeds) = feeds.reuse(&self.fields, self.sampler.options().batch_size) else { return };
        let mut state = lock(&self.state);
        if state.free.len() <= self.options.prefetch {
            state.free.push(feeds);
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
        let filling = &mut *lock(&batch.filling);
        if let Some((_, error)) = filling.error.take() {
            return Err(error);
        }
        let mut feeds = filling.feeds.take().expect("a batch is taken once");
        feeds.zero_from(&self.fields, batch.samples);
        filling.skipped.sort_by_key(|&(place, _)| place);
        let skipped = filling.skipped.drain(..).map(|(_, sample)| sample).collect();
        let Position { epoch, batch: index } = batch.position;
        Ok(Batch { feeds, samples: batch.samples, epoch, index, skipped })
    }

    /// Loads samples until there are no more or the queue is stopped.
    pub(super) fn work(&self) {
        let mut sample = self.samples.empty_sample();
        while let Some(job) = self.next_job() {
            let start = Instant::now();
            let result = self.load(job.batch.position.epoch, job.index, &mut sample);
            let loaded = Instant::now();
            self.store(&job, result, &sample);
            let mut stages = self.samples.take_stages(&mut sample);
            stages.add(Stage::Make, (loaded - start).saturating_sub(stages.sum()));
            stages.add(Stage::Copy, loaded.elapsed());
            lock(&self.stages).add_all(&stages);
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
            if let Some(batch) = state.open.back().filter(|batch| state.assigned < batch.samples).cloned() {
                return Some(self.assign(&mut state, batch));
            }
            if state.next.epoch >= self.options.range.end_epoch {
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
        let samples = batch_size.min(state.order.len() - position.batch * batch_size);
        let feeds = state.free.pop().unwrap_or_else(|| Feeds::alloc(&self.fields, batch_size));
        let filling = Mutex::new(Filling { feeds: Some(feeds), skipped: Vec::new(), error: None });
        state.open.push_back(Arc::new(OpenBatch { position, samples, unfinished: AtomicUsize::new(samples), filling }));
        state.assigned = 0;
        state.next = position.later(self.options.range.share.count, self.batches());
        self.room_made.notify_all();
    }

    /// Loads sample `index`, or the next good one in the order of the data set where bad ones are skipped; returns those
    /// that were.
    fn load(&self, epoch: u32, index: usize, sample: &mut S::Sample) -> Result<Vec<SkippedSample>, DataError> {
        let samples = self.sampler.samples();
        let draw = SampleKey { seed: self.options.seed, epoch, index };
        let mut bad: Vec<(usize, DataError)> = Vec::new();
        for candidate in (index..samples).chain(0..index) {
            match self.load_guarded(candidate, draw, sample) {
                Ok(()) => {
                    let replaced = |(index, error): (usize, DataError)| SkippedSample {
                        index: self.samples.index_in_set(index),
                        replaced_by: self.samples.index_in_set(candidate),
                        reason: error.to_string(),
                    };
                    return Ok(bad.into_iter().map(replaced).collect());
                }
                Err(error) if self.options.on_bad_sample == OnBadSample::Stop => return Err(error),
                Err(error) => bad.push((candidate, error)),
            }
        }
        let (_, last) = bad.pop().expect("a sampler has at least one sample");
        Err(DataError::NothingReadable { samples, last: Box::new(last) })
    }

    fn load_guarded(&self, index: usize, draw: SampleKey, sample: &mut S::Sample) -> Result<(), DataError> {
        guarded(self.samples.index_in_set(index), || self.samples.load_sample(index, draw, sample))
    }

    fn store(&self, job: &Job, result: Result<Vec<SkippedSample>, DataError>, sample: &S::Sample) {
        let (place, filling) = (job.place, &mut *lock(&job.batch.filling));
        let stored = result.and_then(|skipped| {
            let asked = || self.samples.index_in_set(job.index);
            let loaded = skipped.first().map_or_else(asked, |skipped| skipped.replaced_by);
            let feeds = filling.feeds.as_mut().expect("a batch is taken when it is finished");
            guarded(loaded, || {
                self.samples.write(sample, &mut feeds.row(&self.fields, place));
                Ok(())
            })?;
            filling.skipped.extend(skipped.into_iter().map(|skipped| (place, skipped)));
            Ok(())
        });
        if let Err(error) = stored
            && filling.error.as_ref().is_none_or(|&(foremost, _)| place < foremost)
        {
            filling.error = Some((place, error));
        }
    }
}

/// Works on a sample, numbered as in the data set; a panic becomes an error.
fn guarded(index: usize, work: impl FnOnce() -> Result<(), DataError>) -> Result<(), DataError> {
    caught(work).unwrap_or_else(|message| Err(DataError::Panicked { index, message }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}
