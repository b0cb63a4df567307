use super::disk::{Disk, RealDisk, Sink};
use super::*;
use bessemer_data::text::VocabularyIdentity;
use bessemer_weights::{Dtype, FileError, WeightOptions};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tempfile::TempDir;

fn checkpoint(step: u64) -> Checkpoint<'static> {
    let values: Vec<f32> = (0..600).map(|i| (i as f32 + step as f32).sin()).collect();
    let tensor = |name: &str, len: usize| {
        NamedTensor::new(name, Dtype::F32, [len], bytemuck::cast_slice(&values[..len]).to_vec()).unwrap()
    };
    let state = TrainingState {
        step,
        epoch: 3,
        sampler: SamplerPosition { epoch: 3, batch: 17 },
        seed: u64::MAX,
        schedule_step: step - 1,
        recipe: "name = \"x\"\n".to_owned(),
        data: "shapes".to_owned(),
        vocabulary: Some(VocabularyIdentity { entries: 7, sha256: "ab".repeat(32) }),
        metrics: [("top1".to_owned(), 0.1 + 0.2), ("loss".to_owned(), f64::INFINITY)].into(),
        best: Some(BestMetric { metric: "top1".to_owned(), value: 1.0 / 3.0, step: 10, loss: Some(f64::INFINITY) }),
    };
    Checkpoint {
        state,
        model: vec![tensor("fc.weight", 600), tensor("bn.bias", 7)],
        optimizer: vec![tensor("momentum.fc.weight", 600)],
        ema: Some(vec![tensor("fc.weight", 600)]),
    }
}

/// Tensors come back sorted by name, as they are stored.
fn sorted(mut checkpoint: Checkpoint<'static>) -> Checkpoint<'static> {
    checkpoint.model.sort_by(|a, b| a.name.cmp(&b.name));
    checkpoint
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn hidden_names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

/// Calls `reached` after every change to the folder, down to single writes; fails with a full disk after `budget` bytes.
struct WatchedDisk {
    reached: Rc<dyn Fn()>,
    budget: Rc<Cell<usize>>,
}

struct WatchedFile {
    file: File,
    reached: Rc<dyn Fn()>,
    budget: Rc<Cell<usize>>,
}

impl Write for WatchedFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.budget.get());
        if length == 0 && !buffer.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        let written = self.file.write(&buffer[..length])?;
        self.budget.set(self.budget.get() - written);
        (self.reached)();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for WatchedFile {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Disk for WatchedDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        let file = WatchedFile {
            file: File::create(path)?,
            reached: Rc::clone(&self.reached),
            budget: Rc::clone(&self.budget),
        };
        (self.reached)();
        Ok(Box::new(file))
    }

    fn sync_folder(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)?;
        (self.reached)();
        Ok(())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            fs::remove_file(entry?.path())?;
            (self.reached)();
        }
        fs::remove_dir(path)?;
        (self.reached)();
        Ok(())
    }
}

fn watched(reached: impl Fn() + 'static, budget: usize) -> WatchedDisk {
    WatchedDisk { reached: Rc::new(reached), budget: Rc::new(Cell::new(budget)) }
}

fn load(store: &CheckpointStore) -> Checkpoint<'static> {
    let loaded = store.load_latest().unwrap().unwrap();
    assert_eq!(loaded.damaged, []);
    loaded.checkpoint
}

#[test]
fn round_trip_keeps_every_bit() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path().join("checkpoints"), 3).unwrap();
    assert!(store.load_latest().unwrap().is_none());
    let saved = store.save(&checkpoint(123), true).unwrap();
    assert_eq!(saved.path, run.path().join("checkpoints/step-000123"));
    let on_disk: u64 = fs::read_dir(&saved.path).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(saved.bytes, on_disk);
    assert_eq!(load(&store), sorted(checkpoint(123)));
    assert_eq!(store.best(), Some(saved.path));
}

#[test]
fn keeps_the_newest_and_the_best() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 2).unwrap();
    for step in [10, 20, 30, 40, 1_000_000] {
        store.save(&checkpoint(step), step == 20).unwrap();
    }
    assert_eq!(store.steps().unwrap(), [20, 40, 1_000_000]);
    assert_eq!(hidden_names(run.path()), [""; 0]);
    assert_eq!(load(&store).state.step, 1_000_000);
}

#[test]
fn going_back_to_an_earlier_step_makes_it_the_latest() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 5).unwrap();
    store.save(&checkpoint(10), false).unwrap();
    store.save(&checkpoint(20), false).unwrap();
    let mut again = checkpoint(10);
    again.state.epoch = 7;
    store.save(&again, false).unwrap();
    assert_eq!(load(&store), sorted(again));
    assert_eq!(store.steps().unwrap(), [10, 20]);
}

/// Takes an image of the folder after every single change that a save makes and opens each as a restarted run would.
#[test]
fn a_kill_at_any_moment_leaves_a_whole_checkpoint() {
    let work = TempDir::new().unwrap();
    let folder = work.path().join("checkpoints");
    let store = CheckpointStore::open(&folder, 1).unwrap();
    store.save(&checkpoint(20), true).unwrap();

    let images: Rc<RefCell<Vec<PathBuf>>> = Rc::default();
    let take_image = {
        let (images, folder, work) = (Rc::clone(&images), folder.clone(), work.path().to_owned());
        move || {
            let image = work.join(format!("image-{:03}", images.borrow().len()));
            copy_tree(&folder, &image);
            images.borrow_mut().push(image);
        }
    };
    store.save_on(&watched(take_image, usize::MAX), &checkpoint(30), true).unwrap();

    let images = images.borrow();
    assert!(images.len() > 25, "{} images", images.len());
    for image in images.iter() {
        let is_new = fs::read_to_string(image.join("latest")).unwrap() == "step-000030\n";
        let restarted = CheckpointStore::open(image, 1).unwrap();
        assert_eq!(hidden_names(image), [""; 0]);
        assert_eq!(load(&restarted), sorted(checkpoint(if is_new { 30 } else { 20 })));
        restarted.save(&checkpoint(40), false).unwrap();
        assert_eq!(load(&restarted).state.step, 40);
    }
}

#[test]
fn a_kill_while_replacing_a_step_leaves_a_whole_checkpoint() {
    for keep in [1, 2] {
        let work = TempDir::new().unwrap();
        let folder = work.path().join("checkpoints");
        let store = CheckpointStore::open(&folder, keep).unwrap();
        store.save(&checkpoint(10), false).unwrap();
        store.save(&checkpoint(20), false).unwrap();
        let mut again = checkpoint(20);
        again.state.epoch = 7;
        let images = Rc::new(Cell::new(0));
        let check = {
            let (images, again, root) = (Rc::clone(&images), sorted(again.clone()), work.path().to_owned());
            let folder = folder.clone();
            move || {
                images.set(images.get() + 1);
                let image = root.join(format!("image-{}", images.get()));
                copy_tree(&folder, &image);
                let is_whole = |store: &CheckpointStore| {
                    let loaded = load(store);
                    assert!(loaded == sorted(checkpoint(20)) || loaded == again, "step {}", loaded.state.step);
                    assert_eq!(store.steps().unwrap().last(), Some(&20));
                };
                is_whole(&CheckpointStore::for_reading(image.clone()));
                let restarted = CheckpointStore::open(&image, keep).unwrap();
                assert_eq!(hidden_names(&image), [""; 0]);
                is_whole(&restarted);
            }
        };
        store.save_on(&watched(check, usize::MAX), &again, false).unwrap();
        assert!(images.get() > 20);
        assert_eq!(load(&store), sorted(again));
    }
}

/// Fails where a finished checkpoint is renamed to its name.
struct NoRenameIntoPlace;

impl Disk for NoRenameIntoPlace {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Sink>> {
        RealDisk.create(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match from.file_name().unwrap().to_string_lossy().starts_with(".writing-") {
            true => Err(ErrorKind::PermissionDenied.into()),
            false => RealDisk.rename(from, to),
        }
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)
    }
}

#[test]
fn a_step_that_cannot_be_replaced_stays() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 1).unwrap();
    store.save(&checkpoint(20), false).unwrap();
    let mut again = checkpoint(20);
    again.state.epoch = 7;
    let error = store.save_on(&NoRenameIntoPlace, &again, false).unwrap_err();
    assert!(matches!(error, CheckpointError::File(FileError::NotWritable { .. })), "{error}");
    assert_eq!(load(&store), sorted(checkpoint(20)));
    assert_eq!(hidden_names(run.path()), [""; 0]);
}

#[test]
fn a_full_disk_is_one_clear_error_and_changes_nothing() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 1).unwrap();
    store.save(&checkpoint(20), true).unwrap();
    let needed = store.save(&checkpoint(20), true).unwrap().bytes as usize;
    for budget in (0..needed).step_by(151).chain([needed - 1]) {
        let error = store.save_on(&watched(|| (), budget), &checkpoint(30), true).unwrap_err();
        assert!(matches!(error, CheckpointError::File(FileError::DiskFull { .. })), "{error}");
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert_eq!(hidden_names(run.path()), [""; 0]);
        assert_eq!(load(&store), sorted(checkpoint(20)));
    }
}

#[test]
fn a_full_disk_while_pointing_keeps_the_old_pointer() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 2).unwrap();
    let needed = store.save(&checkpoint(20), false).unwrap().bytes as usize;
    assert!(store.save_on(&watched(|| (), needed + 3), &checkpoint(30), false).is_err());
    assert_eq!(load(&store).state.step, 20);
    assert_eq!(hidden_names(run.path()), [""; 0]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let run = TempDir::new().unwrap();
    let file = run.path().join("checkpoints");
    fs::write(&file, "").unwrap();
    let error = CheckpointStore::open(file.join("deeper"), 1).unwrap_err();
    assert!(matches!(error, CheckpointError::File(FileError::NotWritable { .. })), "{error}");
    assert!(error.to_string().contains("checkpoints/deeper"), "{error}");
}

#[test]
fn all_damaged_is_an_error_that_lists_them() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 2).unwrap();
    for step in [10, 20] {
        let saved = store.save(&checkpoint(step), false).unwrap();
        fs::remove_file(saved.path.join(MODEL_FILE)).unwrap();
    }
    let text = store.load_latest().unwrap_err().to_string();
    assert!(text.contains("step-000010/model.safetensors: the file is missing"), "{text}");
    assert!(text.contains("step-000020/model.safetensors: the file is missing"), "{text}");
}

#[test]
fn a_manifest_that_was_edited_is_refused() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 2).unwrap();
    let saved = store.save(&checkpoint(10), false).unwrap();
    let path = saved.path.join(MANIFEST_FILE);
    let text = fs::read_to_string(&path).unwrap();
    let edited = text.replace("\"batch\": 17", "\"batch\": 16");
    assert_ne!(edited, text);
    fs::write(&path, edited).unwrap();
    let error = load_checkpoint(&saved.path).unwrap_err().to_string();
    assert!(error.ends_with("manifest.json: the content does not match its checksum"), "{error}");
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 2).unwrap();
    let saved = store.save(&checkpoint(10), false).unwrap();
    let path = saved.path.join(MANIFEST_FILE);
    let text = fs::read_to_string(&path).unwrap().replace("\"version\": 2", "\"version\": 3");
    fs::write(&path, text).unwrap();
    assert!(matches!(load_checkpoint(&saved.path), Err(CheckpointError::Version { found: 3, supported: 2, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_anywhere_falls_back_and_names_the_file(
        file in prop::sample::select(vec![MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, EMA_FILE]),
        position in any::<prop::sample::Index>(),
        flip in prop::option::of(0_u8..8),
    ) {
        let run = TempDir::new().unwrap();
        let store = CheckpointStore::open(run.path(), 2).unwrap();
        store.save(&checkpoint(10), false).unwrap();
        let path = store.save(&checkpoint(20), false).unwrap().path.join(file);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let position = position.index(bytes.len());
        match flip {
            Some(bit) => bytes[position] ^= 1 << bit,
            None => bytes.truncate(position),
        }
        // A manifest without its last line end says the same, as does one whose number is written otherwise.
        let says = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
        let harmless = file == MANIFEST_FILE && says(&bytes) == says(&whole);
        fs::write(&path, bytes).unwrap();

        let loaded = store.load_latest().unwrap().unwrap();
        if harmless {
            prop_assert_eq!(loaded.checkpoint, sorted(checkpoint(20)));
        } else {
            prop_assert_eq!(loaded.checkpoint, sorted(checkpoint(10)));
            prop_assert_eq!(loaded.damaged.len(), 1);
            prop_assert!(loaded.damaged[0].reason.contains(file), "{}", loaded.damaged[0]);
        }
    }
}

#[test]
fn weights_come_from_files_checkpoints_and_runs() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path().join("checkpoints"), 3).unwrap();
    let best = store.save(&checkpoint(10), true).unwrap().path;
    let latest = store.save(&checkpoint(20), false).unwrap().path;
    let plain = WeightOptions::default();
    let of = |step| sorted(checkpoint(step)).model;
    assert_eq!(load_weights(run.path(), plain).unwrap(), of(10));
    assert_eq!(load_weights(&latest, plain).unwrap(), of(20));
    assert_eq!(load_weights(&best.join(MODEL_FILE), plain).unwrap(), of(10));
    let ema = load_weights(&latest, WeightOptions { ema: true, ..plain }).unwrap();
    assert_eq!(ema, checkpoint(20).ema.unwrap());

    let error = load_weights(&run.path().join("nowhere"), plain).unwrap_err().to_string();
    assert!(error.ends_with("nowhere: does not exist"), "{error}");
    let empty = TempDir::new().unwrap();
    let error = load_weights(empty.path(), plain).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("TensorFlow") && said.contains("saved_model.pb"), "{said}");
    assert!(matches!(error, CheckpointError::File(FileError::NotFound { .. })));
}

/// A manifest without what format 2 added, under a checksum of its own.
fn first_format(text: &str) -> String {
    let mut manifest: serde_json::Value = serde_json::from_str(text).unwrap();
    manifest["version"] = 1.into();
    manifest["state"]["best"].as_object_mut().unwrap().remove("loss");
    manifest["state"].as_object_mut().unwrap().remove("vocabulary");
    let mut manifest: Manifest = serde_json::from_value(manifest).unwrap();
    manifest.sha256 = manifest.own_sha256();
    String::from_utf8(manifest.to_json()).unwrap()
}

#[test]
fn the_first_format_can_be_read() {
    let run = TempDir::new().unwrap();
    let store = CheckpointStore::open(run.path(), 2).unwrap();
    let path = store.save(&checkpoint(10), false).unwrap().path;
    let manifest = path.join(MANIFEST_FILE);
    let text = first_format(&fs::read_to_string(&manifest).unwrap());
    fs::write(&manifest, text).unwrap();
    let state = load_checkpoint(&path).unwrap().state;
    assert_eq!((state.best.unwrap().loss, state.vocabulary), (None, None));
}

#[test]
fn checkpoints_of_a_run_are_chosen_by_name() {
    let run = TempDir::new().unwrap();
    let find = |choice: &str| find_checkpoint(run.path(), Some(choice.parse().unwrap()));
    let said = |choice: &str| find(choice).unwrap().unwrap().to_string();
    let refused = |choice: &str| find(choice).unwrap_err().to_string();
    assert!(refused("latest").ends_with("is no run folder; only of a run can a checkpoint be chosen"));
    assert_eq!(find_checkpoint(run.path(), None).unwrap(), None);

    let store = CheckpointStore::open(run.path().join("checkpoints"), 3).unwrap();
    assert!(refused("latest").ends_with("the run has no checkpoint yet"));
    store.save(&checkpoint(5), false).unwrap();
    let default = || find_checkpoint(run.path(), None).unwrap().unwrap();
    assert_eq!((default().step, default().reason), (5, ChoiceReason::NotEvaluated));
    let no_best = refused("best");
    assert!(
        no_best.ends_with("no best checkpoint, as the run was not evaluated; it has those of steps 5"),
        "{no_best}"
    );

    store.save(&checkpoint(10), true).unwrap();
    store.save(&checkpoint(20), false).unwrap();
    assert!(said("best").ends_with("step-000010: the checkpoint of step 10, the best one of the run (top1 0.3333)"));
    assert!(said("latest").ends_with("step-000020: the checkpoint of step 20, the latest one of the run"));
    assert!(said("5").ends_with("step-000005: the checkpoint of step 5"));
    assert_eq!((default().step, default().reason.name()), (10, "best"));
    assert!(refused("7").ends_with("no checkpoint of step 7; it has those of steps 5, 10, 20"), "{}", refused("7"));
    assert!("newest".parse::<CheckpointChoice>().unwrap_err().contains("best, latest or the number of a step"));
    assert!(find_checkpoint(&default().path, Some(CheckpointChoice::Best)).is_err(), "a checkpoint is no run");
}
