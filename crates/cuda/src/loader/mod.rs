//! Which of CUDA's libraries there are, and where.

mod places;

pub use places::{LibraryPath, Places};

use crate::error::GpuError;
use std::path::PathBuf;

/// A library of CUDA that this program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The driver, `libcuda`.
    Driver,
    /// Built-in headers of the run-time compiler, `libnvrtc-builtins`.
    NvrtcBuiltins,
    /// The run-time compiler, `libnvrtc`.
    Nvrtc,
    /// Matrix products with epilogues, `libcublasLt`.
    CublasLt,
    /// `libcublas`, which cuDNN needs.
    Cublas,
    /// Convolutions and attention, `libcudnn`.
    Cudnn,
    /// Collectives between GPUs, `libnccl`.
    Nccl,
}

impl Wanted {
    /// All, in the order in which they are opened: those that others ask for by name come first.
    pub const ALL: [Wanted; 7] = [
        Wanted::Driver,
        Wanted::NvrtcBuiltins,
        Wanted::Nvrtc,
        Wanted::CublasLt,
        Wanted::Cublas,
        Wanted::Cudnn,
        Wanted::Nccl,
    ];

    /// File name up to the version.
    pub fn stem(self) -> &'static str {
        match self {
            Wanted::Driver => "libcuda.so",
            Wanted::NvrtcBuiltins => "libnvrtc-builtins.so",
            Wanted::Nvrtc => "libnvrtc.so",
            Wanted::CublasLt => "libcublasLt.so",
            Wanted::Cublas => "libcublas.so",
            Wanted::Cudnn => "libcudnn.so",
            Wanted::Nccl => "libnccl.so",
        }
    }

    /// What it is for.
    pub fn purpose(self) -> &'static str {
        match self {
            Wanted::Driver => "the driver",
            Wanted::NvrtcBuiltins => "part of the compiler",
            Wanted::Nvrtc => "compiler of kernels",
            Wanted::CublasLt | Wanted::Cublas => "matrix products",
            Wanted::Cudnn => "convolutions, attention",
            Wanted::Nccl => "several GPUs",
        }
    }

    /// Numbers in the version of its file name: `libnvrtc-builtins.so.13.0` has two.
    fn version_parts(self) -> usize {
        if self == Wanted::NvrtcBuiltins { 2 } else { 1 }
    }

    /// Whether the number in the file name is the major version of CUDA.
    pub fn follows_cuda(self) -> bool {
        matches!(self, Wanted::NvrtcBuiltins | Wanted::Nvrtc | Wanted::CublasLt | Wanted::Cublas)
    }

    /// Version in a file name of this library, such as `[13]`.
    fn version_in(self, file_name: &str) -> Option<Vec<u32>> {
        let version = file_name.strip_prefix(self.stem())?.strip_prefix('.')?;
        let parts: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
        parts.filter(|parts| parts.len() == self.version_parts())
    }
}

/// A library's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which library it is.
    pub library: Wanted,
    /// The file to open.
    pub path: PathBuf,
    /// Version in the file name.
    pub version: Vec<u32>,
    /// Which group of folders it was found in.
    pub place: LibraryPath,
}

impl Found {
    fn major(&self) -> u32 {
        self.version[0]
    }
}

/// The libraries of a machine.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// The folders that were searched.
    pub places: Places,
    /// One entry for each library that exists, in the order of [`Wanted::ALL`].
    pub found: Vec<Found>,
}

impl Libraries {
    /// Looks, opens nothing.
    pub fn find(places: Places) -> Libraries {
        let found = Wanted::ALL.into_iter().filter_map(|library| places.find(library)).collect();
        Libraries { places, found }
    }

    /// The file of a library; `None` if it was not found.
    pub fn get(&self, library: Wanted) -> Option<&Found> {
        self.found.iter().find(|found| found.library == library)
    }

    /// The file of a library without which the caller cannot go on.
    ///
    /// # Errors
    /// It is in none of the places.
    pub fn require(&self, library: Wanted) -> Result<&Found, GpuError> {
        self.get(library).ok_or_else(|| GpuError::NotFound {
            library: library.stem(),
            purpose: library.purpose(),
            looked: self.places.to_string(),
        })
    }

    /// Checks that all libraries are of one major version of CUDA, and of one that the driver can run.
    ///
    /// # Errors
    /// Says which two do not fit together.
    pub fn check_versions(&self, driver_version: Option<i32>) -> Result<(), GpuError> {
        let mut of_cuda = self.found.iter().filter(|found| found.library.follows_cuda());
        let Some(first) = of_cuda.next() else { return Ok(()) };
        if let Some(other) = of_cuda.find(|other| other.major() != first.major()) {
            return Err(GpuError::Mixed(format!(
                "libraries of different CUDA versions: {} is of CUDA {}, {} of CUDA {}",
                first.path.display(),
                first.major(),
                other.path.display(),
                other.major()
            )));
        }
        match driver_version {
            Some(version) if (version / 1000) < first.major() as i32 => Err(GpuError::Mixed(format!(
                "the driver runs CUDA up to {}, {} is of CUDA {}",
                version_text(version),
                first.path.display(),
                first.major()
            ))),
            _ => Ok(()),
        }
    }
}

/// `13000` as `13.0`: the way in which CUDA's driver numbers versions.
pub fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_off_file_names() {
        assert_eq!(Wanted::Nvrtc.version_in("libnvrtc.so.13"), Some(vec![13]));
        assert_eq!(Wanted::Nvrtc.version_in("libnvrtc.alt.so.13"), None);
        assert_eq!(Wanted::Nvrtc.version_in("libnvrtc.so.13.0.88"), None);
        assert_eq!(Wanted::Nvrtc.version_in("libnvrtc.so"), None);
        assert_eq!(Wanted::NvrtcBuiltins.version_in("libnvrtc-builtins.so.13.0"), Some(vec![13, 0]));
        assert_eq!(Wanted::Cublas.version_in("libcublasLt.so.13"), None);
        assert_eq!(Wanted::Driver.version_in("libcuda.so.1"), Some(vec![1]));
        assert_eq!(version_text(12080), "12.8");
    }
}
