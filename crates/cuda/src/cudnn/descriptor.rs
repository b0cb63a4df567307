//! Descriptors: made, filled attribute by attribute, finalised, and destroyed in the end.

use super::Cudnn;
use super::api::{DescriptorKind, Handle, data_type, kind_of};
use crate::error::GpuError;
use bessemer_ir::DType;
use std::ffi::c_void;
use std::ptr::from_mut;
use std::sync::Arc;

/// A descriptor of cuDNN's.
pub(super) struct Descriptor {
    library: Arc<Cudnn>,
    pub handle: Handle,
    kind: DescriptorKind,
}

impl Descriptor {
    pub(super) fn new(library: &Arc<Cudnn>, kind: DescriptorKind) -> Result<Descriptor, GpuError> {
        let mut handle = 0;
        // SAFETY: the pointer is to a local handle.
        let code = unsafe { (library.api.cudnnBackendCreateDescriptor)(kind as i32, from_mut(&mut handle)) };
        library.check("cudnnBackendCreateDescriptor", kind.name(), code)?;
        Ok(Descriptor { library: Arc::clone(library), handle, kind })
    }

    /// Sets an attribute to `values`, whose type is the one that `kind_of` names.
    fn set<T: Copy>(&self, attribute: i32, kind_of: i32, values: &[T]) -> Result<(), GpuError> {
        let (set, values_at) = (self.library.api.cudnnBackendSetAttribute, values.as_ptr().cast::<c_void>());
        // SAFETY: there are as many values as said, of the type said, which cuDNN copies.
        let code = unsafe { set(self.handle, attribute, kind_of, values.len() as i64, values_at) };
        self.library.check("cudnnBackendSetAttribute", self.kind.name(), code)
    }

    pub(super) fn int64s(&self, attribute: i32, values: &[i64]) -> Result<(), GpuError> {
        self.set(attribute, kind_of::INT64, values)
    }

    pub(super) fn float(&self, attribute: i32, value: f32) -> Result<(), GpuError> {
        self.set(attribute, kind_of::FLOAT, &[value])
    }

    pub(super) fn truth(&self, attribute: i32, value: bool) -> Result<(), GpuError> {
        self.set(attribute, kind_of::BOOLEAN, &[u8::from(value)])
    }

    /// The type that is computed in, or that of a tensor.
    pub(super) fn data_type(&self, attribute: i32, ty: DType) -> Result<(), GpuError> {
        self.code(attribute, kind_of::DATA_TYPE, data_type(ty))
    }

    /// A number of one of cuDNN's enumerations.
    pub(super) fn code(&self, attribute: i32, kind_of: i32, value: i32) -> Result<(), GpuError> {
        self.set(attribute, kind_of, &[value])
    }

    pub(super) fn descriptor(&self, attribute: i32, value: &Descriptor) -> Result<(), GpuError> {
        self.descriptors(attribute, &[value.handle])
    }

    pub(super) fn descriptors(&self, attribute: i32, handles: &[Handle]) -> Result<(), GpuError> {
        self.set(attribute, kind_of::DESCRIPTOR, handles)
    }

    /// The library's handle for a device.
    pub(super) fn library_handle(&self, attribute: i32, handle: Handle) -> Result<(), GpuError> {
        self.set(attribute, kind_of::HANDLE, &[handle])
    }

    /// Addresses in the device's memory.
    pub(super) fn addresses(&self, attribute: i32, addresses: &[u64]) -> Result<(), GpuError> {
        self.set(attribute, kind_of::POINTER, addresses)
    }

    /// A text with the zero behind it.
    pub(super) fn text(&self, attribute: i32, text: &str) -> Result<(), GpuError> {
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        self.set(attribute, kind_of::CHAR, &bytes)
    }

    /// Ends the description.
    ///
    /// # Errors
    /// Something is missing or not supported.
    pub(super) fn finalize(self) -> Result<Descriptor, GpuError> {
        // SAFETY: the handle is of this descriptor.
        let code = unsafe { (self.library.api.cudnnBackendFinalize)(self.handle) };
        self.library.check("cudnnBackendFinalize", self.kind.name(), code)?;
        Ok(self)
    }

    /// The handle, which the caller destroys.
    pub(super) fn into_handle(mut self) -> Handle {
        std::mem::take(&mut self.handle)
    }

    /// Reads at most as many values as there is room for; returns how many there are.
    fn get<T>(&self, attribute: i32, kind_of: i32, room: &mut [T]) -> Result<usize, GpuError> {
        let (mut count, get) = (0, self.library.api.cudnnBackendGetAttribute);
        let to = if room.is_empty() { std::ptr::null_mut() } else { room.as_mut_ptr().cast::<c_void>() };
        // SAFETY: there is room for as many values as asked for, of the type said.
        let code = unsafe { get(self.handle, attribute, kind_of, room.len() as i64, from_mut(&mut count), to) };
        self.library.check("cudnnBackendGetAttribute", self.kind.name(), code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn get_int64(&self, attribute: i32) -> Result<i64, GpuError> {
        let mut value = [0];
        self.get(attribute, kind_of::INT64, &mut value)?;
        Ok(value[0])
    }

    /// Numbers of an enumeration, at most `most`.
    pub(super) fn get_codes(&self, attribute: i32, kind_of: i32, most: usize) -> Result<Vec<i32>, GpuError> {
        let mut values = vec![0; most];
        let count = self.get(attribute, kind_of, &mut values)?;
        values.truncate(count);
        Ok(values)
    }

    pub(super) fn get_text(&self, attribute: i32) -> Result<String, GpuError> {
        let mut bytes = vec![0u8; self.get::<u8>(attribute, kind_of::CHAR, &mut [])?];
        self.get(attribute, kind_of::CHAR, &mut bytes)?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// How many descriptors an attribute has.
    pub(super) fn count(&self, attribute: i32) -> Result<usize, GpuError> {
        self.get::<Handle>(attribute, kind_of::DESCRIPTOR, &mut [])
    }

    /// Copies of at most `most` descriptors that an attribute has.
    pub(super) fn get_descriptors(
        &self,
        attribute: i32,
        kind: DescriptorKind,
        most: usize,
    ) -> Result<Vec<Descriptor>, GpuError> {
        let made = (0..most).map(|_| Descriptor::new(&self.library, kind)).collect::<Result<Vec<_>, _>>();
        let mut made = made?;
        let mut handles: Vec<Handle> = made.iter().map(|descriptor| descriptor.handle).collect();
        let count = self.get(attribute, kind_of::DESCRIPTOR, &mut handles)?;
        made.truncate(count);
        Ok(made)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.handle != 0 && self.library.is_usable() {
            // SAFETY: the handle was created once and is used no more.
            unsafe { (self.library.api.cudnnBackendDestroyDescriptor)(self.handle) };
        }
    }
}
