//! What there is of GPUs and of CUDA on a machine.
