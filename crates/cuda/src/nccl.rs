//! NCCL: sums and copies between the GPUs of several ranks, one thread or process each.

use crate::driver::{Block, Context, Stream};
use crate::error::GpuError;
use crate::library::functions;
use crate::loader::{Libraries, Wanted};
use bessemer_ir::DType;
use std::ffi::{CStr, c_char};
use std::ptr::from_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A communicator's handle: a pointer that is never followed.
type Handle = usize;

/// What the ranks of one communicator share, made by one of them and carried to the others. `ncclUniqueId`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

functions!(
    /// libnccl.so (nccl.h)
    NcclApi {
        fn ncclGetVersion(*mut i32) -> i32;
        fn ncclGetErrorString(i32) -> *const c_char;
        fn ncclGetLastError(Handle) -> *const c_char;
        fn ncclGetUniqueId(*mut UniqueId) -> i32;
        fn ncclCommInitRank(*mut Handle, i32, UniqueId, i32) -> i32;
        fn ncclCommDestroy(Handle) -> i32;
        fn ncclCommAbort(Handle) -> i32;
        fn ncclCommGetAsyncError(Handle, *mut i32) -> i32;
        fn ncclAllReduce(u64, u64, usize, i32, i32, Handle, Handle) -> i32;
        fn ncclBroadcast(u64, u64, usize, i32, i32, Handle, Handle) -> i32;
        fn ncclGroupStart() -> i32;
        fn ncclGroupEnd() -> i32;
    }
);

/// `ncclInProgress`
const IN_PROGRESS: i32 = 7;

/// `ncclDataType_t`
fn data_type(ty: DType) -> Option<i32> {
    match ty {
        DType::U8 => Some(1),
        DType::I32 => Some(2),
        DType::F16 => Some(6),
        DType::F32 => Some(7),
        DType::Bf16 => Some(9),
        DType::Bool => None,
    }
}

/// How the elements of all ranks are combined; the codes are those of `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// `ncclSum`
    Sum = 0,
    /// `ncclMax`
    Max = 2,
    /// `ncclMin`
    Min = 3,
    /// `ncclAvg`
    Mean = 4,
}

/// NCCL, opened.
pub struct Nccl {
    api: NcclApi,
}

/// One rank among those that share a [`UniqueId`].
pub struct Communicator {
    nccl: Arc<Nccl>,
    context: Context,
    handle: Handle,
    rank: usize,
    ranks: usize,
    is_aborted: AtomicBool,
}

/// Between looks at the job while ranks are waited for.
const LOOK: Duration = Duration::from_millis(20);

/// How NCCL is to work, where the user has not said it by its variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclSettings {
    /// It adds in one order whatever the size of a message, so that runs have the same bits: `NCCL_ALGO` is `Ring` and `NCCL_PROTO`
    /// `Simple`.
    pub one_order: bool,
    /// The network interface by which machines reach each other: `NCCL_SOCKET_IFNAME`.
    pub interface: Option<String>,
}

impl NcclSettings {
    /// The variables that say so, which NCCL reads when its first communicator is made.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let order = [("NCCL_ALGO", "Ring".to_owned()), ("NCCL_PROTO", "Simple".to_owned())];
        // By `=` NCCL takes this interface alone, not all whose names begin so.
        let interface = self.interface.as_ref().map(|name| ("NCCL_SOCKET_IFNAME", format!("={name}")));
        order.into_iter().filter(|_| self.one_order).chain(interface).collect()
    }
}

impl Nccl {
    /// Opens the library; communicators are created from it.
    ///
    /// # Errors
    /// It was not found or cannot be opened.
    pub fn open(libraries: &Libraries) -> Result<Arc<Nccl>, GpuError> {
        Ok(Arc::new(Nccl { api: NcclApi::load(&libraries.require(Wanted::Nccl)?.path)? }))
    }

    /// `22809` is 2.28.9.
    ///
    /// # Errors
    /// It does not say.
    pub fn version(&self) -> Result<i32, GpuError> {
        let mut version = 0;
        // SAFETY: the pointer is to a local number.
        self.check("ncclGetVersion", 0, unsafe { (self.api.ncclGetVersion)(from_mut(&mut version)) })?;
        Ok(version)
    }

    /// An id for one new communicator.
    ///
    /// # Errors
    /// There is no network interface to meet at.
    pub fn unique_id(&self) -> Result<UniqueId, GpuError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a local id.
        self.check("ncclGetUniqueId", 0, unsafe { (self.api.ncclGetUniqueId)(from_mut(&mut id)) })?;
        Ok(id)
    }

    /// Gives NCCL everything that `work` asks for at once: several buffers, or several ranks of one thread.
    ///
    /// # Errors
    /// Those of `work`, or NCCL refuses one of the parts, which shows at the end of the group.
    pub fn group<T>(&self, work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
        // SAFETY: takes nothing.
        self.check("ncclGroupStart", 0, unsafe { (self.api.ncclGroupStart)() })?;
        let worked = work();
        // SAFETY: takes nothing; a group of this thread is open.
        let ended = self.check("ncclGroupEnd", 0, unsafe { (self.api.ncclGroupEnd)() });
        worked.and_then(|value| ended.map(|()| value))
    }

    /// An error that names the call and what NCCL says of it; `handle` is 0 where it concerns no communicator.
    fn check(&self, call: &'static str, handle: Handle, code: i32) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        let text = |text: *const c_char| {
            // SAFETY: NCCL's texts end with a zero.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: takes any number, and returns a constant text.
        let message = text(unsafe { (self.api.ncclGetErrorString)(code) });
        // SAFETY: the handle is valid or null, and the text stays until the thread's next call.
        let details = text(unsafe { (self.api.ncclGetLastError)(handle) }).unwrap_or_default();
        let details = details.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut meaning = message.unwrap_or_else(|| "a code that NCCL does not explain".to_owned());
        if !details.is_empty() {
            meaning += &format!(" ({details})");
        }
        Err(GpuError::Call { call, code, meaning })
    }
}

impl Communicator {
    /// Joins as number `rank` of `ranks`, and waits for the others.
    ///
    /// # Errors
    /// There is no such rank, a rank does not come, or they do not fit together.
    pub fn join(
        nccl: &Arc<Nccl>,
        context: &Context,
        id: UniqueId,
        rank: usize,
        ranks: usize,
    ) -> Result<Communicator, GpuError> {
        Self::join_while(nccl, context, id, rank, ranks, || Ok(()))
    }

    /// The same while `check`, which is asked from time to time, finds nothing wrong. Where it does, a thread that waits for a rank is
    /// left behind.
    ///
    /// # Errors
    /// That of `check`, and those of [`Communicator::join`].
    pub fn join_while<E: From<GpuError>>(
        nccl: &Arc<Nccl>,
        context: &Context,
        id: UniqueId,
        rank: usize,
        ranks: usize,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<Communicator, E> {
        if rank >= ranks || i32::try_from(ranks).is_err() {
            let problem = format!("there is no rank {rank} of {ranks}");
            return Err(GpuError::Launch { kernel: "ncclCommInitRank".to_owned(), problem }.into());
        }
        let (joined, waits) = mpsc::channel();
        let (of_thread, context_of_thread) = (nccl.clone(), context.clone());
        std::thread::spawn(move || {
            let join = || {
                context_of_thread.bind()?;
                let mut handle = 0;
                // SAFETY: the pointer is to a local handle.
                let code =
                    unsafe { (of_thread.api.ncclCommInitRank)(from_mut(&mut handle), ranks as i32, id, rank as i32) };
                of_thread.check("ncclCommInitRank", 0, code)?;
                Ok(handle)
            };
            // Nobody may wait any more.
            let _ = joined.send(join());
        });
        let handle: Result<Handle, GpuError> = loop {
            match waits.recv_timeout(LOOK) {
                Ok(handle) => break handle,
                Err(mpsc::RecvTimeoutError::Timeout) => check()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => unreachable!("the thread answers before it ends"),
            }
        };
        let (nccl, context, is_aborted) = (nccl.clone(), context.clone(), AtomicBool::new(false));
        Ok(Communicator { nccl, context, handle: handle?, rank, ranks, is_aborted })
    }

    /// Number of this process in the communicator, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes in the communicator.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// `to` of every rank becomes the reduction of every rank's `from`, some time; both may be the same.
    ///
    /// # Errors
    /// The lengths differ, there is no such type, or NCCL refuses.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        from: &Block,
        to: &Block,
        ty: DType,
        reduction: Reduction,
    ) -> Result<(), GpuError> {
        let (code_of_type, elements) = self.elements("ncclAllReduce", from, to, ty)?;
        stream.keep_block(from);
        stream.keep_block(to);
        let (call, reduction, handle) = (self.nccl.api.ncclAllReduce, reduction as i32, self.handle()?);
        // SAFETY: both blocks have that number of elements of the type; the handles are valid.
        let code =
            unsafe { call(from.address(), to.address(), elements, code_of_type, reduction, handle, stream.raw()) };
        self.nccl.check("ncclAllReduce", handle, code)
    }

    /// `block` of every rank becomes that of rank `root`, some time.
    ///
    /// # Errors
    /// There is no such rank or type, or NCCL refuses.
    pub fn broadcast(&self, stream: &Stream, block: &Block, ty: DType, root: usize) -> Result<(), GpuError> {
        if root >= self.ranks {
            let problem = format!("there is no rank {root} of {}", self.ranks);
            return Err(GpuError::Launch { kernel: "ncclBroadcast".to_owned(), problem });
        }
        let (code_of_type, elements) = self.elements("ncclBroadcast", block, block, ty)?;
        stream.keep_block(block);
        let (call, at, handle) = (self.nccl.api.ncclBroadcast, block.address(), self.handle()?);
        // SAFETY: the block has that number of elements of the type; the handles are valid.
        let code = unsafe { call(at, at, elements, code_of_type, root as i32, handle, stream.raw()) };
        self.nccl.check("ncclBroadcast", handle, code)
    }

    /// The code of the type, and how many elements the blocks have.
    fn elements(&self, call: &'static str, from: &Block, to: &Block, ty: DType) -> Result<(i32, usize), GpuError> {
        if from.bytes() != to.bytes() {
            return Err(GpuError::Length { from: from.bytes(), to: to.bytes() });
        }
        let refused = |problem: String| GpuError::Launch { kernel: call.to_owned(), problem };
        let code = data_type(ty).ok_or_else(|| refused(format!("takes no {ty}")))?;
        if !from.bytes().is_multiple_of(ty.size()) {
            return Err(refused(format!("{} bytes are no whole number of {ty}", from.bytes())));
        }
        self.context.bind()?;
        Ok((code, from.bytes() / ty.size()))
    }

    /// Ends all that is under way, whose results have no meaning; other threads may wait for it meanwhile. Nothing can be given
    /// to the communicator from then on.
    pub fn abort(&self) {
        if !self.is_aborted.swap(true, Ordering::SeqCst) {
            // SAFETY: the handle was made once, and is given to no call from now on.
            unsafe { (self.nccl.api.ncclCommAbort)(self.handle) };
        }
    }

    /// The handle, while there is a communicator.
    fn handle(&self) -> Result<Handle, GpuError> {
        match self.is_aborted.load(Ordering::SeqCst) {
            true => Err(GpuError::Communicator("the communicator of the ranks was aborted".to_owned())),
            false => Ok(self.handle),
        }
    }

    /// Whether something that was given earlier failed, here or at another rank.
    ///
    /// # Errors
    /// It did.
    pub fn check(&self) -> Result<(), GpuError> {
        let (mut state, handle) = (0, self.handle()?);
        let call = self.nccl.api.ncclCommGetAsyncError;
        // SAFETY: the handle is valid, the pointer is to a local number.
        let code = unsafe { call(handle, from_mut(&mut state)) };
        self.nccl.check("ncclCommGetAsyncError", handle, code)?;
        if state == IN_PROGRESS { Ok(()) } else { self.nccl.check("ncclCommGetAsyncError", handle, state) }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_aborted.load(Ordering::SeqCst) || self.context.is_alive().is_err() {
            return;
        }
        let _ = self.context.bind();
        // After an error other ranks may never come: only aborting does not wait for them.
        match self.check() {
            // SAFETY: the handle was made once and is used no more.
            Ok(()) => drop(unsafe { (self.nccl.api.ncclCommDestroy)(self.handle) }),
            Err(_) => self.abort(),
        }
    }
}
