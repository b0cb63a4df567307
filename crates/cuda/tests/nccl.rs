//! NCCL over a mock whose ranks are threads.

mod common;

use bessemer_cuda::GpuError;
use bessemer_cuda::driver::{Arena, Context, Driver, Stream};
use bessemer_cuda::loader::{Libraries, Places, Wanted};
use bessemer_cuda::nccl::{Communicator, Nccl, Reduction, UniqueId};
use bessemer_ir::DType;
use common::{Knobs, mock_or_skip};
use std::path::Path;
use std::sync::{Arc, Mutex};

const MOCK: &str = "libnccl.so.2";
const N: usize = 300;

/// Counts of communicators are those of the process: tests that look at them come one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Rank {
    stream: Stream,
    arena: Arena,
    communicator: Communicator,
    nccl: Arc<Nccl>,
}

fn libraries(folder: &Path) -> Libraries {
    Libraries::find(Places { named: vec![folder.to_owned()], ..Places::default() })
}

fn join(folder: &Path, id: UniqueId, rank: usize, ranks: usize) -> Result<Rank, GpuError> {
    let libraries = libraries(folder);
    let context = Context::new(&Driver::open(&libraries.require(Wanted::Driver)?.path)?, 0)?;
    let (stream, arena) = (context.stream()?, context.arena(8192)?);
    let nccl = Nccl::open(&libraries)?;
    let communicator = Communicator::join(&nccl, &context, id, rank, ranks)?;
    Ok(Rank { stream, arena, communicator, nccl })
}

impl Rank {
    /// Numbers that differ between ranks, reduced; the result in every rank.
    fn reduced(&self, reduction: Reduction) -> Result<Vec<f32>, GpuError> {
        let own: Vec<u8> = (0..N).flat_map(|i| ((i * (self.communicator.rank() + 1)) as f32).to_le_bytes()).collect();
        let (from, to) = (self.arena.block(0, N * 4)?, self.arena.block(4096, N * 4)?);
        self.stream.upload(&own, &from)?;
        self.communicator.all_reduce(&self.stream, &from, &to, DType::F32, reduction)?;
        self.communicator.check()?;
        let mut bytes = vec![0; N * 4];
        self.stream.download(&to, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect())
    }

    /// The first rank's bytes in every rank, and the sum of two pieces of memory in one group.
    fn copied_and_grouped(&self) -> Result<(Vec<u8>, [u8; 2]), GpuError> {
        let rank = self.communicator.rank() as u8;
        let (first, second) = (self.arena.block(0, 16)?, self.arena.block(256, 16)?);
        self.stream.fill(&first, 7 + rank)?;
        self.communicator.broadcast(&self.stream, &first, DType::U8, 0)?;
        let mut copied = vec![0; 16];
        self.stream.download(&first, &mut copied)?;
        self.stream.fill(&first, 1 + rank)?;
        self.stream.fill(&second, 10 * (1 + rank))?;
        self.nccl.group(|| {
            for block in [&first, &second] {
                self.communicator.all_reduce(&self.stream, block, block, DType::U8, Reduction::Sum)?;
            }
            Ok(())
        })?;
        let mut sums = [0; 32];
        self.stream.download(&first, &mut sums[..16])?;
        self.stream.download(&second, &mut sums[16..])?;
        Ok((copied, [sums[0], sums[16]]))
    }
}

/// What every rank gives, each in a thread of its own.
fn in_ranks<T: Send>(
    folder: &Path,
    ranks: usize,
    work: impl Fn(&Rank) -> Result<T, GpuError> + Sync,
) -> Vec<Result<T, GpuError>> {
    let id = Nccl::open(&libraries(folder)).unwrap().unique_id().unwrap();
    std::thread::scope(|scope| {
        let work = &work;
        let start = |rank| scope.spawn(move || work(&join(folder, id, rank, ranks)?));
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_get_the_numbers_of_all() {
    let Some(folder) = mock_or_skip("sums of ranks") else { return };
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    assert_eq!(Nccl::open(&libraries(folder)).unwrap().version().unwrap(), 22_809);
    for ranks in [1, 2, 3] {
        let factors = [(1..=ranks).sum::<usize>() as f32, ranks as f32, 1.0];
        for (reduction, factor) in [Reduction::Sum, Reduction::Max, Reduction::Min].into_iter().zip(factors) {
            for result in in_ranks(folder, ranks, |rank| rank.reduced(reduction)) {
                assert_eq!(result.unwrap(), (0..N).map(|i| i as f32 * factor).collect::<Vec<_>>());
            }
        }
    }
    for result in in_ranks(folder, 2, |rank| rank.reduced(Reduction::Mean)) {
        assert_eq!(result.unwrap()[4], 6.0);
    }
    for result in in_ranks(folder, 2, Rank::copied_and_grouped) {
        assert_eq!(result.unwrap(), (vec![7; 16], [3, 30]));
    }
    assert_eq!(Knobs::of(folder, MOCK).get("communicators"), 0);
}

/// Each call of NCCL in turn returns a code that no one knows.
#[test]
fn every_call_may_fail_and_nothing_leaks() {
    let Some(folder) = mock_or_skip("errors of NCCL") else { return };
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let knobs = Knobs::of(folder, MOCK);
    let everything = || {
        let nccl = Nccl::open(&libraries(folder))?;
        nccl.version()?;
        let rank = join(folder, nccl.unique_id()?, 0, 1)?;
        rank.reduced(Reduction::Sum)?;
        rank.copied_and_grouped().map(drop)
    };
    knobs.set("reset", 1);
    everything().unwrap();
    let calls = knobs.get("calls");
    assert_eq!(calls, 12);
    for failing in 1..=calls {
        let (call, result): (_, Result<(), GpuError>) = knobs.failing(failing, 54_321, everything);
        match result {
            Err(error) => {
                let message = error.to_string();
                let wanted = format!("{call} failed with code 54321: a code that NCCL does not explain");
                assert_eq!(message, wanted);
            }
            // The state that is asked for before the release, and the release itself.
            Ok(()) => assert!(failing >= calls - 1, "{call} (call {failing}) was not noticed"),
        }
        let leaked = knobs.get("communicators");
        assert_eq!(leaked, i64::from(call == "ncclCommDestroy"), "{call} (call {failing})");
    }
    knobs.set("reset", 1);
    // The one that could not be destroyed is the mock's.
    assert_eq!(knobs.get("communicators"), 1);
    knobs.set("forget", 1);
}

#[test]
fn what_does_not_fit_is_reported() {
    let Some(folder) = mock_or_skip("ranks that do not fit") else { return };
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let message = in_ranks(folder, 2, |rank| {
        let elements = 4 * (1 + rank.communicator.rank());
        let block = rank.arena.block(0, elements * 4)?;
        rank.communicator.all_reduce(&rank.stream, &block, &block, DType::F32, Reduction::Sum)
    });
    for result in message {
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("ncclAllReduce failed with code 5: invalid usage"), "{message}");
    }
    let id = || Nccl::open(&libraries(folder)).unwrap().unique_id().unwrap();
    let message = join(folder, id(), 2, 2).err().unwrap().to_string();
    assert_eq!(message, "kernel `ncclCommInitRank`: there is no rank 2 of 2");
    let rank = join(folder, id(), 0, 1).unwrap();
    let block = |bytes| rank.arena.block(0, bytes).unwrap();
    let reduce = |from, to, ty| {
        let (from, to) = (block(from), block(to));
        rank.communicator.all_reduce(&rank.stream, &from, &to, ty, Reduction::Sum).unwrap_err().to_string()
    };
    assert!(reduce(8, 12, DType::F32).contains("copying 8 bytes into 12"));
    assert_eq!(reduce(8, 8, DType::Bool), "kernel `ncclAllReduce`: takes no bool");
    assert_eq!(reduce(7, 7, DType::F32), "kernel `ncclAllReduce`: 7 bytes are no whole number of f32");
    let message = rank.communicator.broadcast(&rank.stream, &block(4), DType::F32, 1).unwrap_err().to_string();
    assert_eq!(message, "kernel `ncclBroadcast`: there is no rank 1 of 1");
}

/// A later failure is reported by a check, and such a communicator is not waited for.
#[test]
fn errors_of_other_ranks_are_told_and_end_the_communicator() {
    let Some(folder) = mock_or_skip("errors of other ranks") else { return };
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let knobs = Knobs::of(folder, MOCK);
    let id = Nccl::open(&libraries(folder)).unwrap().unique_id().unwrap();
    let rank = join(folder, id, 0, 1).unwrap();
    knobs.set("state", 7);
    rank.communicator.check().unwrap();
    knobs.set("state", 6);
    let message = rank.communicator.check().unwrap_err().to_string();
    let wanted = "ncclCommGetAsyncError failed with code 6: remote process exited or there was a network error";
    assert_eq!(message, wanted);
    drop(rank);
    assert_eq!(knobs.get("aborted"), 1);
    knobs.set("reset", 1);
}
