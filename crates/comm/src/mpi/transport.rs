//! Messages through MPI, of one thread.

use super::api::{Api, Handle};
use crate::CommError;
use crate::launch::Placement;
use crate::transport::{MAX_MESSAGE, Request, Transport};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `MPI_MAX_ERROR_STRING` of the family that has the longest.
const MAX_ERROR: usize = 512;

/// The highest tag that every MPI allows, which no operation uses.
const UNUSED_TAG: c_int = 32767;

/// MPI starts once in a process.
static STARTED: AtomicBool = AtomicBool::new(false);

pub(super) struct MpiTransport<H: Handle> {
    api: Api<H>,
    /// A copy of the world, whose messages meet no others.
    communicator: H,
    rank: usize,
    size: usize,
    pending: BTreeMap<u64, Pending<H>>,
    next: u64,
    cancelled: bool,
    /// MPI belongs to the thread that started it.
    _not_send: PhantomData<*const ()>,
}

/// A request, with the memory that MPI reads or writes until it is complete.
struct Pending<H> {
    request: H,
    _sent: Arc<Vec<u8>>,
    received: Vec<u8>,
}

impl<H: Handle> MpiTransport<H> {
    pub(super) fn start(api: Api<H>, placement: &Placement) -> Result<Self, CommError> {
        if STARTED.swap(true, Ordering::Relaxed) {
            return Err(CommError::NoMpi { reason: "MPI was started before in this process".to_owned() });
        }
        let (functions, constants) = (&api.functions, &api.constants);
        let mut provided = 0;
        // SAFETY: null stands for no arguments; the last pointer is to a local number.
        let code = unsafe {
            (functions.MPI_Init_thread)(null_mut(), null_mut(), constants.thread_funneled, &raw mut provided)
        };
        api.check("MPI_Init_thread", code)?;
        let mut communicator = constants.world;
        // SAFETY: both handles are constants of this library.
        api.check("MPI_Comm_set_errhandler", unsafe {
            (functions.MPI_Comm_set_errhandler)(constants.world, constants.errors_return)
        })?;
        // SAFETY: the world is valid since MPI was started; the pointer is to a local handle.
        api.check("MPI_Comm_dup", unsafe { (functions.MPI_Comm_dup)(constants.world, &raw mut communicator) })?;
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is valid; the pointer is to a local number.
        api.check("MPI_Comm_rank", unsafe { (functions.MPI_Comm_rank)(communicator, &raw mut rank) })?;
        // SAFETY: as above.
        api.check("MPI_Comm_size", unsafe { (functions.MPI_Comm_size)(communicator, &raw mut size) })?;
        let [rank, size] = [rank, size].map(|value| usize::try_from(value).unwrap_or(usize::MAX));
        if (rank, size) != (placement.rank, placement.size) {
            let launcher = placement.launcher.map_or("no launcher", |launcher| launcher.title());
            let (expected_rank, expected) = (placement.rank, placement.size);
            return Err(CommError::MpiDisagrees { launcher, expected_rank, expected, rank, size });
        }
        Ok(MpiTransport {
            api,
            communicator,
            rank,
            size,
            pending: BTreeMap::new(),
            next: 0,
            cancelled: false,
            _not_send: PhantomData,
        })
    }

    /// The count of a message that may be posted.
    fn count(&self, length: usize) -> Result<c_int, CommError> {
        match (self.cancelled, length > MAX_MESSAGE) {
            (true, _) => Err(CommError::Cancelled),
            (false, true) => Err(CommError::MessageTooLong { length }),
            (false, false) => Ok(length as c_int),
        }
    }

    fn pending(&mut self, request: H, sent: Arc<Vec<u8>>, received: Vec<u8>) -> Request {
        self.next += 1;
        self.pending.insert(self.next, Pending { request, _sent: sent, received });
        Request(self.next)
    }
}

impl<H: Handle> Transport for MpiTransport<H> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&mut self, to: usize, tag: u16, bytes: Arc<Vec<u8>>) -> Result<Request, CommError> {
        let count = self.count(bytes.len())?;
        let constants = &self.api.constants;
        let mut request = constants.request_null;
        // SAFETY: the bytes stay in `pending` until the request is complete, or are leaked; nobody writes them.
        let code = unsafe {
            let send = self.api.functions.MPI_Isend;
            send(
                bytes.as_ptr(),
                count,
                constants.byte,
                to as c_int,
                c_int::from(tag),
                self.communicator,
                &raw mut request,
            )
        };
        self.api.check("MPI_Isend", code)?;
        Ok(self.pending(request, bytes, Vec::new()))
    }

    fn receive(&mut self, from: usize, tag: u16, length: usize) -> Result<Request, CommError> {
        let count = self.count(length)?;
        let constants = &self.api.constants;
        let mut request = constants.request_null;
        let mut bytes = vec![0_u8; length];
        // SAFETY: the bytes stay in `pending`, where nobody reads them, until the request is complete, or are leaked.
        let code = unsafe {
            let receive = self.api.functions.MPI_Irecv;
            let buffer = bytes.as_mut_ptr();
            receive(buffer, count, constants.byte, from as c_int, c_int::from(tag), self.communicator, &raw mut request)
        };
        self.api.check("MPI_Irecv", code)?;
        Ok(self.pending(request, Arc::default(), bytes))
    }

    fn test(&mut self, request: Request) -> Result<Option<Vec<u8>>, CommError> {
        self.count(0)?;
        let pending = self.pending.get_mut(&request.0).expect("a request is tested until it is complete");
        let mut done = 0;
        // SAFETY: one request of this library; statuses are not wanted.
        let code = unsafe {
            let test = self.api.functions.MPI_Testall;
            test(1, &raw mut pending.request, &raw mut done, self.api.constants.status_ignore)
        };
        self.api.check("MPI_Testall", code)?;
        if done == 0 {
            return Ok(None);
        }
        Ok(self.pending.remove(&request.0).map(|pending| pending.received))
    }

    /// Asks for a message that no rank sends, as any call serves connections.
    fn progress(&mut self) {
        if self.cancelled {
            return;
        }
        let (other, mut found) = ((self.rank + 1) % self.size, 0);
        // SAFETY: the communicator is valid, the pointer is to a local number, and the status is not wanted.
        let _ = unsafe {
            let probe = self.api.functions.MPI_Iprobe;
            probe(other as c_int, UNUSED_TAG, self.communicator, &raw mut found, self.api.constants.status_ignore)
        };
    }

    fn cancel(&mut self) {
        self.cancelled = true;
        // MPI may still read and write these.
        std::mem::forget(std::mem::take(&mut self.pending));
    }
}

impl<H: Handle> Drop for MpiTransport<H> {
    /// Ends MPI after a quiet time, unless a rank was lost: that would wait for it.
    fn drop(&mut self) {
        if self.cancelled || !self.pending.is_empty() {
            self.cancel();
            return;
        }
        std::thread::sleep(H::QUIET);
        // SAFETY: nothing is under way, and nobody else uses MPI.
        let _ = unsafe { (self.api.functions.MPI_Finalize)() };
    }
}

impl<H: Handle> Api<H> {
    /// An error that names the call and what MPI says of it.
    fn check(&self, call: &'static str, code: c_int) -> Result<(), CommError> {
        if code == 0 {
            return Ok(());
        }
        let mut text: [c_char; MAX_ERROR + 1] = [0; MAX_ERROR + 1];
        let mut length = 0;
        // SAFETY: takes any code, and writes at most the longest text with its zero; the last element is zero in any case.
        let text = unsafe {
            (self.functions.MPI_Error_string)(code, text.as_mut_ptr(), &raw mut length);
            CStr::from_ptr(text.as_ptr())
        };
        Err(CommError::Mpi { call, code, meaning: text.to_string_lossy().into_owned() })
    }
}
