//! Compiled kernels, and what they are called with.

use super::api::function_attribute;
use super::context::Inner;
use super::{Block, Context, Handle};
use crate::error::GpuError;
use crate::kgen::{Kernel, Parameter};
use std::ffi::CString;
use std::sync::Arc;

/// Compiled kernels, loaded.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

pub(super) struct Loaded {
    pub(super) context: Arc<Inner>,
    handle: Handle,
}

/// A kernel that can be launched. It keeps its module.
#[derive(Clone)]
pub struct Function {
    pub(super) module: Arc<Loaded>,
    pub(super) handle: Handle,
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) blocks: [u32; 3],
    pub(super) threads: [u32; 3],
}

impl Module {
    pub(super) fn new(context: &Context, cubin: &[u8]) -> Result<Module, GpuError> {
        let context = context.0.clone();
        context.bind()?;
        let mut handle = 0;
        // SAFETY: the pointer is to a whole cubin, whose length stands in its header.
        let code = unsafe { (context.driver.api.cuModuleLoadData)(&mut handle, cubin.as_ptr().cast()) };
        context.check("cuModuleLoadData", code)?;
        Ok(Module(Arc::new(Loaded { context, handle })))
    }

    /// The function of the module that `kernel` names, with its parameters and launch size.
    ///
    /// # Errors
    /// The module has no such kernel.
    pub fn function(&self, kernel: &Kernel) -> Result<Function, GpuError> {
        let context = &self.0.context;
        let name = CString::new(kernel.name.as_str()).map_err(|_| GpuError::Launch {
            kernel: kernel.name.clone(),
            problem: "the name holds a zero".to_owned(),
        })?;
        context.bind()?;
        let mut handle = 0;
        // SAFETY: the pointers are to a local handle and to a text that ends with a zero.
        let code = unsafe { (context.driver.api.cuModuleGetFunction)(&mut handle, self.0.handle, name.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        Ok(Function {
            module: self.0.clone(),
            handle,
            name: kernel.name.clone(),
            parameters: kernel.parameters.clone(),
            blocks: kernel.blocks,
            threads: kernel.threads,
        })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the module was loaded once, and no function of it is left.
        self.context.release("cuModuleUnload", || unsafe { (self.context.driver.api.cuModuleUnload)(self.handle) });
    }
}

impl Function {
    /// Registers of a thread, and bytes of its memory that were spilled or are arrays.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn resources(&self) -> Result<(i32, i32), GpuError> {
        let context = &self.module.context;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the pointer is to a local number, the handle of a loaded kernel.
            let code = unsafe { (context.driver.api.cuFuncGetAttribute)(&mut value, attribute, self.handle) };
            context.check("cuFuncGetAttribute", code).map(|()| value)
        };
        context.bind()?;
        Ok((attribute(function_attribute::REGISTERS)?, attribute(function_attribute::LOCAL_BYTES)?))
    }

    /// Of the memory that it takes, in order: bytes that it touches, and whether it writes them.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (usize, bool)> {
        self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Memory { ty, elements, written, .. } => Some((elements * ty.size(), *written)),
            Parameter::Number { .. } => None,
        })
    }

    /// Arguments as the driver takes them, each in eight bytes: the kernel's numbers, and these blocks, once they were found to be the memory
    /// that it expects.
    pub(super) fn packed(&self, blocks: &[Block]) -> Result<Vec<u64>, GpuError> {
        let wrong = |problem: String| GpuError::Launch { kernel: self.name.clone(), problem };
        let (given, taken) = (blocks.len(), self.memory().count());
        if given != taken {
            return Err(wrong(format!("takes {taken} blocks of memory, {given} are given")));
        }
        let mut blocks = blocks.iter();
        let pack = |parameter: &Parameter| match parameter {
            Parameter::Memory { name, ty, elements, .. } => {
                let (block, needed) = (blocks.next().expect("they were counted"), elements * ty.size());
                if block.bytes() < needed {
                    return Err(wrong(format!("`{name}` takes {needed} bytes, {} are given", block.bytes())));
                }
                if !block.address().is_multiple_of(16) {
                    return Err(wrong(format!("`{name}` is not aligned to 16 bytes")));
                }
                Ok(block.address())
            }
            Parameter::Number { value, .. } => Ok(u64::from(*value)),
        };
        self.parameters.iter().map(pack).collect()
    }
}
