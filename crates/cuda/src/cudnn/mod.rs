//! cuDNN's backend interface: graphs of operations, asked for the engines that run them, made into plans, and run.
//!
//! A graph is planned for a device, or, without any, for a [`DeviceDescription`] that says what a device is like.

mod api;
mod build;
mod convolutions;
mod descriptor;
mod device_description;
mod graph;
mod norms;
mod plan;
mod reference;
pub mod support;

pub use convolutions::{Activation, Convolution, Fusion, Shifted, Support};
pub use device_description::DeviceDescription;
pub use graph::{Geometry, Graph, GraphTensor, Pass, Role, TensorId};
pub(crate) use graph::{Node, Pointwise};
pub use norms::BatchNorm;
pub(crate) use plan::MOST_WORKSPACE;
pub use plan::{Bound, Engine, Heuristics, Plan, Planner};

use crate::driver::Context;
use crate::error::GpuError;
use crate::library::open;
use crate::loader::{Libraries, Wanted};
use api::{CudnnApi, DescriptorKind, Handle, attribute};
use descriptor::Descriptor;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char};
use std::ptr::from_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// cuDNN, opened for a device or for a device's description.
pub struct Cudnn {
    api: CudnnApi,
    target: PlanTarget,
    /// Libraries that cuDNN asks for by their bare names, as far as they can be opened.
    _before: Vec<Library>,
}

/// What plans are made for.
enum PlanTarget {
    /// The stream belongs to the handle, so only one thread at a time may use it.
    Device { context: Context, handle: Mutex<Handle> },
    /// Descriptor of a device description, 0 until it is made.
    Described(Handle),
}

/// What cuDNN asks for by its bare name, in this order.
const BEFORE: [Wanted; 5] = [Wanted::Driver, Wanted::NvrtcBuiltins, Wanted::Nvrtc, Wanted::CublasLt, Wanted::Cublas];

impl Cudnn {
    /// Opens it for the device of `context`.
    ///
    /// # Errors
    /// It was not found, cannot be opened, or does not start.
    pub fn open(libraries: &Libraries, context: &Context) -> Result<Arc<Cudnn>, GpuError> {
        let target = PlanTarget::Device { context: context.clone(), handle: Mutex::new(0) };
        let library = Cudnn::load(libraries, target)?;
        context.bind()?;
        let mut handle = 0;
        // SAFETY: the pointer is to a local handle.
        let code = unsafe { (library.api.cudnnCreate)(from_mut(&mut handle)) };
        library.check("cudnnCreate", "", code)?;
        if let PlanTarget::Device { handle: place, .. } = &library.target {
            *locked(place) = handle;
        }
        Ok(Arc::new(library))
    }

    /// Opens it for a device that need not be there. Its plans say what is supported; they cannot be run.
    ///
    /// # Errors
    /// It was not found, cannot be opened, or refuses the description.
    pub fn without_device(libraries: &Libraries, description: &DeviceDescription) -> Result<Arc<Cudnn>, GpuError> {
        let mut library = Arc::new(Cudnn::load(libraries, PlanTarget::Described(0))?);
        let handle = {
            let made = Descriptor::new(&library, DescriptorKind::DeviceDescription)?;
            made.text(attribute::DEVICE_JSON, &description.json)?;
            made.finalize()?.into_handle()
        };
        let own = Arc::get_mut(&mut library).expect("the one descriptor of this library is gone");
        own.target = PlanTarget::Described(handle);
        Ok(library)
    }

    fn load(libraries: &Libraries, target: PlanTarget) -> Result<Cudnn, GpuError> {
        let before = BEFORE.into_iter().filter_map(|library| open(&libraries.get(library)?.path).ok()).collect();
        let api = CudnnApi::load(&libraries.require(Wanted::Cudnn)?.path)?;
        Ok(Cudnn { api, target, _before: before })
    }

    /// `91900` is 9.19.0.
    pub fn version(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (self.api.cudnnGetVersion)() }
    }

    /// With its version, as in files of choices.
    pub(crate) fn named(&self) -> String {
        format!("cuDNN {}", self.version())
    }

    /// What cuDNN knows of the device that it was opened for.
    ///
    /// # Errors
    /// It was opened for a description, or it refuses.
    pub fn device_description(self: &Arc<Self>) -> Result<DeviceDescription, GpuError> {
        let (context, handle) = self.device("cudnnBackendFinalize")?;
        context.bind()?;
        let description = Descriptor::new(self, DescriptorKind::DeviceDescription)?;
        description.library_handle(attribute::DEVICE_HANDLE, *handle)?;
        Ok(DeviceDescription { json: description.finalize()?.get_text(attribute::DEVICE_JSON)? })
    }

    /// The device's context and the handle, for as long as it is used.
    fn device(&self, call: &'static str) -> Result<(&Context, MutexGuard<'_, Handle>), GpuError> {
        match &self.target {
            PlanTarget::Device { context, handle } => Ok((context, locked(handle))),
            PlanTarget::Described(_) => {
                let problem = "cuDNN was opened for a device description, not for a device".to_owned();
                Err(GpuError::Launch { kernel: call.to_owned(), problem })
            }
        }
    }

    /// Whether it may be called: of a device that is lost nothing is released.
    fn is_usable(&self) -> bool {
        match &self.target {
            PlanTarget::Device { context, .. } => context.is_alive().is_ok(),
            PlanTarget::Described(_) => true,
        }
    }

    /// An error that names the call, what it was about, and what cuDNN says.
    fn check(&self, call: &'static str, about: &str, code: i32) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number, and returns a constant text.
        let text = unsafe { (self.api.cudnnGetErrorString)(code) };
        let mut meaning = if text.is_null() {
            "a code that cuDNN does not explain".to_owned()
        } else {
            // SAFETY: the text ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        if !about.is_empty() {
            meaning += &format!(", for {about}");
        }
        let details = self.last_error();
        if !details.is_empty() {
            meaning += &format!(" ({details})");
        }
        Err(GpuError::Call { call, code, meaning })
    }

    /// What cuDNN says of the calling thread's last error, in one line.
    fn last_error(&self) -> String {
        const ROOM: usize = 1024;
        let mut text = [0 as c_char; ROOM];
        // SAFETY: there is room for as much as said, the zero behind it included.
        unsafe { (self.api.cudnnGetLastErrorString)(text.as_mut_ptr(), ROOM) };
        text[ROOM - 1] = 0;
        // SAFETY: the last character is a zero.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Whether cuDNN says that it has no way to do something: `CUDNN_STATUS_NOT_SUPPORTED` and its parts.
pub(crate) fn is_unsupported(error: &GpuError) -> bool {
    matches!(error, GpuError::Call { code: 3000..4000, .. })
}

fn locked(handle: &Mutex<Handle>) -> MutexGuard<'_, Handle> {
    handle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        match &self.target {
            PlanTarget::Device { context, handle } => {
                let handle = *locked(handle);
                let _ = context.bind();
                if handle != 0 && context.is_alive().is_ok() {
                    // SAFETY: the handle was created once and is used no more.
                    unsafe { (self.api.cudnnDestroy)(handle) };
                }
            }
            PlanTarget::Described(0) => (),
            // SAFETY: the descriptor was created once and is used no more.
            PlanTarget::Described(handle) => unsafe {
                (self.api.cudnnBackendDestroyDescriptor)(*handle);
            },
        }
    }
}
