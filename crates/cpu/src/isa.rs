//! Instruction sets the kernels are written for, and how one is chosen at run time.

use std::fmt;
use std::str::FromStr;

/// A family of vector instructions. Kernels take it as a run-time value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 F, BW, DQ and VL with FMA.
    Avx512,
    /// AVX2 with FMA.
    Avx2,
    /// AArch64 NEON.
    Neon,
    /// Plain Rust, any target.
    Portable,
}

/// A name that is not an instruction set of this machine.
#[derive(Debug, thiserror::Error)]
#[error("instruction set `{name}` is not usable on this machine; it has: {available}")]
pub struct IsaError {
    name: String,
    available: String,
}

impl Isa {
    /// All instruction sets, fastest first.
    pub const ALL: [Isa; 4] = [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// The fastest instruction set of this machine.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// All instruction sets of this machine, fastest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            Isa::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The name used in flags, logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Isa, IsaError> {
        let available = Isa::available();
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| IsaError {
            name: name.to_owned(),
            available: available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_available_sets_parse() {
        assert_eq!(Isa::available().first(), Some(&Isa::detect()));
        for isa in Isa::available() {
            assert_eq!(isa.name().parse::<Isa>().unwrap(), isa);
        }
    }

    #[test]
    fn unknown_name_lists_what_is_available() {
        let message = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(message.contains("sse9") && message.contains("portable"), "{message}");
    }
}
