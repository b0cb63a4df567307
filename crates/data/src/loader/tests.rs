use super::*;
use crate::feeds::{Field, Row};
use crate::{Dataset, Label, Philox, SamplerOptions, Scratch, Share};

/// Samples of one byte-like value: the index, mixed with a random number; some indices are bad.
struct Numbers {
    len: usize,
    bad: Vec<usize>,
    panics: bool,
    classes: Vec<String>,
}

impl Numbers {
    fn new(len: usize, bad: &[usize]) -> Self {
        Self { len, bad: bad.to_vec(), panics: false, classes: vec!["only".into()] }
    }
}

impl Dataset for Numbers {
    type Target = Label;

    fn len(&self) -> usize {
        self.len
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [2, 3]
    }

    fn load(&self, index: usize, rng: &mut Philox, _: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        if self.bad.contains(&index) {
            assert!(!self.panics, "sample {index} is broken");
            return Err(DataError::option("sample", index, "a good one"));
        }
        if index.is_multiple_of(7) {
            thread::sleep(Duration::from_micros(300));
        }
        rng.fill(out);
        out[0] = index as u8;
        Ok(Label(index as u32))
    }

    fn source(&self, index: usize) -> String {
        format!("number {index}")
    }

    fn identity(&self) -> String {
        "numbers".into()
    }
}

fn samples(set: Numbers) -> Arc<ImageSamples<Numbers>> {
    Arc::new(ImageSamples::new(Arc::new(set), ()).unwrap())
}

fn train(dataset: Numbers, batch_size: usize, options: LoaderOptions) -> Loader<ImageSamples<Numbers>> {
    let sampler = Sampler::new(dataset.len, SamplerOptions::train(batch_size, 5)).unwrap();
    Loader::new(samples(dataset), sampler, options).unwrap()
}

fn epochs(loader: &mut Loader<ImageSamples<Numbers>>, count: usize) -> Vec<Batch> {
    let mut batches = Vec::new();
    for _ in 0..count {
        while let Some(batch) = loader.next_batch() {
            let batch = batch.unwrap();
            batches.push(batch.clone());
            loader.recycle(batch.feeds);
        }
    }
    batches
}

/// Every batch that a loader gives, whatever epoch it is of, with the position behind it.
fn all(loader: &mut Loader<ImageSamples<Numbers>>) -> Vec<(Batch, Position)> {
    let mut batches = Vec::new();
    while let Some(batch) = loader.next_batch().or_else(|| loader.next_batch()) {
        batches.push((batch.unwrap(), loader.position()));
    }
    batches
}

#[test]
fn ranks_share_the_sequence_of_one() {
    for (samples, start) in [(50, Position::default()), (50, Position { epoch: 1, batch: 2 }), (8, Position::default())]
    {
        let of = |share| {
            let range = BatchRange { start, end_epoch: 4, share };
            all(&mut train(Numbers::new(samples, &[]), 8, LoaderOptions { range, ..LoaderOptions::new(2, 11, 4) }))
        };
        let expected = of(Share::ALL);
        assert!(expected.len() >= 4);
        for count in 2..=7 {
            for index in 0..count {
                let given = of(Share { index, count });
                let wanted: Vec<&Batch> = expected.iter().skip(index).step_by(count).map(|(batch, _)| batch).collect();
                assert_eq!(given.iter().map(|(batch, _)| batch).collect::<Vec<_>>(), wanted, "{index} of {count}");
                // Behind a whole round, the position is that of one rank behind the same batches.
                for (round, (_, position)) in given.iter().enumerate() {
                    if let Some((_, at)) = expected.get((round + 1) * count - 1) {
                        assert_eq!(position, at, "{index} of {count}, round {round}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_evaluation_is_shared_without_padding() {
    let of = |share| {
        let sampler = Sampler::new(19, SamplerOptions::eval(4)).unwrap();
        let options =
            LoaderOptions { range: BatchRange { share, ..BatchRange::epochs(1) }, ..LoaderOptions::new(2, 11, 1) };
        let mut loader = Loader::new(samples(Numbers::new(19, &[])), sampler, options).unwrap();
        all(&mut loader).into_iter().map(|(batch, _)| (batch.index, batch.samples)).collect::<Vec<_>>()
    };
    assert_eq!(of(Share { index: 0, count: 3 }), [(0, 4), (3, 4)]);
    assert_eq!(of(Share { index: 1, count: 3 }), [(1, 4), (4, 3)]);
    assert_eq!(of(Share { index: 2, count: 3 }), [(2, 4)]);
    assert_eq!(of(Share { index: 6, count: 7 }), []);
}

#[test]
fn batches_do_not_depend_on_the_number_of_workers() {
    let run = |workers, prefetch| {
        let options = LoaderOptions { prefetch, ..LoaderOptions::new(workers, 11, 3) };
        epochs(&mut train(Numbers::new(50, &[]), 8, options), 3)
    };
    let one = run(1, 1);
    assert_eq!(one.len(), 18);
    assert_eq!(one, run(4, 3));
    assert_eq!(one, run(3, 8));
    assert_ne!(one[0].feeds.i32("labels"), one[6].feeds.i32("labels"), "epochs are shuffled differently");
    let first = |label: i32| one.iter().filter(move |b| b.feeds.i32("labels").contains(&label)).collect::<Vec<_>>();
    let sample = |batch: &Batch, label| batch.feeds.u8("images").chunks(18).nth(place(batch, label)).unwrap().to_vec();
    let label = one[0].feeds.i32("labels")[0];
    assert_ne!(sample(first(label)[0], label), sample(first(label)[1], label), "epochs are augmented differently");
}

fn place(batch: &Batch, label: i32) -> usize {
    batch.feeds.i32("labels").iter().position(|&l| l == label).unwrap()
}

#[test]
fn starts_anywhere() {
    let all = epochs(&mut train(Numbers::new(50, &[]), 8, LoaderOptions::new(2, 11, 3)), 3);
    for (epoch, batch) in [(0, 1), (1, 0), (1, 5), (2, 3)] {
        let start = Position { epoch, batch };
        let mut loader = train(
            Numbers::new(50, &[]),
            8,
            LoaderOptions { range: BatchRange::from(start, 3), ..LoaderOptions::new(2, 11, 3) },
        );
        assert_eq!(loader.position(), start);
        assert_eq!(epochs(&mut loader, 3), all[epoch as usize * 6 + batch..]);
    }
}

#[test]
fn the_end_of_an_epoch_is_a_position() {
    let mut loader = train(Numbers::new(8, &[]), 4, LoaderOptions::new(1, 0, 2));
    loader.next_batch().unwrap().unwrap();
    loader.next_batch().unwrap().unwrap();
    let end = loader.position();
    assert_eq!(end, Position { epoch: 0, batch: 2 });
    assert!(loader.next_batch().is_none());
    assert_eq!(loader.position(), Position { epoch: 1, batch: 0 });
    let next = loader.next_batch().unwrap().unwrap();
    let mut resumed = train(
        Numbers::new(8, &[]),
        4,
        LoaderOptions { range: BatchRange::from(end, 2), ..LoaderOptions::new(1, 0, 2) },
    );
    assert!(resumed.next_batch().is_none());
    assert_eq!(resumed.next_batch().unwrap().unwrap(), next);
    epochs(&mut resumed, 1);
    assert!(resumed.next_batch().is_none(), "stays at the end");
}

#[test]
fn last_batch_is_padded_with_zeros() {
    let dataset = Numbers::new(10, &[]);
    let sampler = Sampler::new(10, SamplerOptions::eval(4)).unwrap();
    let mut loader = Loader::new(samples(dataset), sampler, LoaderOptions::new(2, 0, 2)).unwrap();
    let batches = epochs(&mut loader, 2);
    assert_eq!(batches.iter().map(|b| b.samples).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2]);
    for last in [&batches[2], &batches[5]] {
        assert_eq!(last.feeds.i32("labels"), [8, 9, 0, 0]);
        assert!(last.feeds.u8("images")[2 * 18..].iter().all(|&byte| byte == 0));
    }
    assert_eq!((loader.stats().batches, loader.stats().samples), (6, 20));
}

#[test]
fn a_bad_sample_stops_the_loader() {
    let bad = [3, 6];
    let message = |workers| {
        let mut loader = train(Numbers::new(8, &bad), 8, LoaderOptions::new(workers, 0, 1));
        let error = loader.next_batch().unwrap().unwrap_err().to_string();
        assert!(loader.next_batch().is_none());
        error
    };
    assert!(message(1).contains("expected a good one"), "{}", message(1));
    assert_eq!(message(1), message(4), "the foremost bad sample is reported");
}

#[test]
fn bad_samples_are_skipped_and_listed() {
    let run = |workers| {
        let dataset = Numbers::new(8, &[3, 4, 7]);
        let sampler = Sampler::new(8, SamplerOptions::eval(8)).unwrap();
        let options = LoaderOptions { on_bad_sample: OnBadSample::Skip, ..LoaderOptions::new(workers, 0, 2) };
        let mut loader = Loader::new(samples(dataset), sampler, options).unwrap();
        let batches = epochs(&mut loader, 2);
        (batches, loader.skipped().cloned().collect::<Vec<_>>(), loader.stats().skipped)
    };
    let (batches, skipped, count) = run(1);
    assert_eq!(batches[0].feeds.i32("labels"), [0, 1, 2, 5, 5, 5, 6, 0]);
    let pairs: Vec<_> = skipped.iter().map(|s| (s.index, s.replaced_by)).collect();
    assert_eq!(pairs, [(3, 5), (4, 5), (7, 0)]);
    assert_eq!(count, 8, "3, 4, again 4, and 7 in each epoch");
    assert_eq!((batches, skipped, count), run(4));
}

#[test]
fn nothing_readable_is_an_error() {
    let options = LoaderOptions { on_bad_sample: OnBadSample::Skip, ..LoaderOptions::new(2, 0, 1) };
    let mut loader = train(Numbers::new(3, &[0, 1, 2]), 3, options);
    let error = loader.next_batch().unwrap().unwrap_err();
    assert!(error.to_string().starts_with("none of the 3 samples can be read"), "{error}");
}

#[test]
fn a_panic_is_reported_and_not_waited_for() {
    let mut dataset = Numbers::new(8, &[2]);
    dataset.panics = true;
    let mut loader = train(dataset, 8, LoaderOptions::new(2, 0, 1));
    let error = loader.next_batch().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "sample 2: loading it panicked: sample 2 is broken");
}

/// Samples that load, and of which one cannot be written into a batch.
struct Unwritable;

impl Samples for Unwritable {
    type Sample = usize;

    fn empty_sample(&self) -> usize {
        0
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::i32("ids", 1)]
    }

    fn load_sample(&self, index: usize, _: SampleKey, sample: &mut usize) -> Result<(), DataError> {
        *sample = index;
        Ok(())
    }

    fn write(&self, sample: &usize, row: &mut Row<'_>) {
        assert_ne!(*sample, 5, "it does not fit");
        row.i32("ids")[0] = *sample as i32;
    }
}

#[test]
fn a_panic_while_writing_is_reported_and_not_waited_for() {
    for workers in [1, 3] {
        let sampler = Sampler::new(8, SamplerOptions::eval(4)).unwrap();
        let mut loader = Loader::new(Arc::new(Unwritable), sampler, LoaderOptions::new(workers, 0, 1)).unwrap();
        assert_eq!(loader.next_batch().unwrap().unwrap().feeds.i32("ids"), [0, 1, 2, 3]);
        let error = loader.next_batch().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("sample 5: loading it panicked") && error.contains("it does not fit"), "{error}");
    }
}

#[test]
fn dropping_joins_workers_that_wait_or_work() {
    for taken in 0..3 {
        let mut loader = train(Numbers::new(64, &[]), 8, LoaderOptions::new(4, 0, 1_000_000));
        for _ in 0..taken {
            loader.next_batch().unwrap().unwrap();
        }
        let queue = Arc::downgrade(&loader.queue);
        drop(loader);
        assert_eq!(queue.strong_count(), 0);
    }
}

#[test]
fn settings_are_checked() {
    let start = |options| {
        let sampler = Sampler::new(8, SamplerOptions::train(4, 0)).unwrap();
        Loader::new(samples(Numbers::new(8, &[])), sampler, options).map(|_| ())
    };
    let good = LoaderOptions::new(1, 0, 1);
    assert!(start(good).is_ok());
    assert!(start(LoaderOptions { workers: 0, ..good }).is_err());
    assert!(start(LoaderOptions { prefetch: 0, ..good }).is_err());
    let late =
        start(LoaderOptions { range: BatchRange::from(Position { epoch: 0, batch: 3 }, 1), ..good }).unwrap_err();
    assert_eq!(late.to_string(), "batch to start from is 3, expected at most the 2 batches of an epoch");
}
