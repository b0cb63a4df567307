//! The functions of the driver that are used (cuda.h), under the names of their symbols.

use crate::library::functions;
use std::ffi::{c_char, c_void};

/// A handle of the driver: a pointer that is never followed.
pub(crate) type Handle = usize;
/// Address in the device's memory.
pub(crate) type Address = u64;

functions!(
    /// libcuda.so.1
    DriverApi {
        fn cuInit(u32) -> i32;
        fn cuDriverGetVersion(*mut i32) -> i32;
        fn cuGetErrorName(i32, *mut *const c_char) -> i32;
        fn cuGetErrorString(i32, *mut *const c_char) -> i32;
        fn cuDeviceGetCount(*mut i32) -> i32;
        fn cuDeviceGet(*mut i32, i32) -> i32;
        fn cuDeviceGetName(*mut c_char, i32, i32) -> i32;
        fn cuDeviceTotalMem_v2(*mut usize, i32) -> i32;
        fn cuDeviceGetAttribute(*mut i32, i32, i32) -> i32;
        fn cuDevicePrimaryCtxRetain(*mut Handle, i32) -> i32;
        fn cuDevicePrimaryCtxRelease_v2(i32) -> i32;
        fn cuCtxSetCurrent(Handle) -> i32;
        fn cuCtxSynchronize() -> i32;
        fn cuMemGetInfo_v2(*mut usize, *mut usize) -> i32;
        fn cuMemAlloc_v2(*mut Address, usize) -> i32;
        fn cuMemFree_v2(Address) -> i32;
        fn cuMemHostAlloc(*mut *mut c_void, usize, u32) -> i32;
        fn cuMemFreeHost(*mut c_void) -> i32;
        fn cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle) -> i32;
        fn cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle) -> i32;
        fn cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle) -> i32;
        fn cuMemsetD8Async(Address, u8, usize, Handle) -> i32;
        fn cuStreamCreate(*mut Handle, u32) -> i32;
        fn cuStreamDestroy_v2(Handle) -> i32;
        fn cuStreamSynchronize(Handle) -> i32;
        fn cuStreamWaitEvent(Handle, Handle, u32) -> i32;
        fn cuStreamBeginCapture_v2(Handle, i32) -> i32;
        fn cuStreamEndCapture(Handle, *mut Handle) -> i32;
        fn cuGraphGetNodes(Handle, *mut Handle, *mut usize) -> i32;
        fn cuGraphInstantiateWithFlags(*mut Handle, Handle, u64) -> i32;
        fn cuGraphLaunch(Handle, Handle) -> i32;
        fn cuGraphExecDestroy(Handle) -> i32;
        fn cuGraphDestroy(Handle) -> i32;
        fn cuEventCreate(*mut Handle, u32) -> i32;
        fn cuEventDestroy_v2(Handle) -> i32;
        fn cuEventRecord(Handle, Handle) -> i32;
        fn cuEventSynchronize(Handle) -> i32;
        fn cuEventElapsedTime(*mut f32, Handle, Handle) -> i32;
        fn cuModuleLoadData(*mut Handle, *const c_void) -> i32;
        fn cuModuleUnload(Handle) -> i32;
        fn cuModuleGetFunction(*mut Handle, Handle, *const c_char) -> i32;
        fn cuFuncGetAttribute(*mut i32, i32, Handle) -> i32;
        fn cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void) -> i32;
    }
);

/// `CUdevice_attribute`
pub(crate) mod device_attribute {
    pub(crate) const CLOCK_KHZ: i32 = 13;
    pub(crate) const MULTIPROCESSORS: i32 = 16;
    pub(crate) const MEMORY_CLOCK_KHZ: i32 = 36;
    pub(crate) const MEMORY_BUS_BITS: i32 = 37;
    pub(crate) const L2_BYTES: i32 = 38;
    pub(crate) const CAPABILITY_MAJOR: i32 = 75;
    pub(crate) const CAPABILITY_MINOR: i32 = 76;
}

/// `CUfunction_attribute`
pub(crate) mod function_attribute {
    pub(crate) const LOCAL_BYTES: i32 = 3;
    pub(crate) const REGISTERS: i32 = 4;
}

/// `CU_MEMHOSTALLOC_DEVICEMAP`
pub(crate) const MAPPED: u32 = 2;
/// `CU_STREAM_NON_BLOCKING`
pub(crate) const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
pub(crate) const CAPTURE_THREAD_LOCAL: i32 = 1;
