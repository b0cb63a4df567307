//! What a device is like, in the words that cuDNN (9.8 and later) takes instead of the device.

/// A device in cuDNN's own JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// The text of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`.
    pub json: String,
}

/// What differs between devices that are written down here.
struct Properties {
    name: &'static str,
    /// Compute capability in hundreds.
    capability: u32,
    multiprocessors: u32,
    /// Bytes of shared memory that a block may ask for.
    shared_bytes: u32,
    memory_bytes: u64,
    pci_id: u32,
    clock_khz: u32,
    memory_clock_khz: u32,
    l2_bytes: u32,
}

impl DeviceDescription {
    /// Of an H200 with 141 GB, written from NVIDIA's data, not read from a device.
    pub fn h200() -> DeviceDescription {
        DeviceDescription::of(&Properties {
            name: "NVIDIA H200",
            capability: 900,
            multiprocessors: 132,
            shared_bytes: 232_448,
            memory_bytes: 150_754_820_096,
            pci_id: 9013,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            l2_bytes: 62_914_560,
        })
    }

    /// Of an A100 SXM with 80 GB, written from NVIDIA's data, not read from a device.
    pub fn a100() -> DeviceDescription {
        DeviceDescription::of(&Properties {
            name: "NVIDIA A100-SXM4-80GB",
            capability: 800,
            multiprocessors: 108,
            shared_bytes: 166_912,
            memory_bytes: 85_198_045_184,
            pci_id: 8370,
            clock_khz: 1_410_000,
            memory_clock_khz: 1_593_000,
            l2_bytes: 41_943_040,
        })
    }

    fn of(properties: &Properties) -> DeviceDescription {
        let Properties { name, capability, multiprocessors, shared_bytes, memory_bytes, .. } = properties;
        let Properties { pci_id, clock_khz, memory_clock_khz, l2_bytes, .. } = properties;
        let json = format!(
            "{{\"deviceName\":\"{name}\",\"cudaDeviceId\":0,\"deviceVer\":{capability},\
             \"multiProcessorCount\":{multiprocessors},\"driverVer\":13000,\
             \"maxSharedMemoryPerBlockOptin\":{shared_bytes},\"totalGlobalMem\":{memory_bytes},\
             \"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\
             \"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,\
             \"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\
             \"pciDeviceId\":{pci_id},\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":{clock_khz},\
             \"memClockRateKHz\":{memory_clock_khz},\"l2CacheSize\":{l2_bytes}}}"
        );
        DeviceDescription { json }
    }
}
