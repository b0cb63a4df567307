"""OneFlow as a peer; `../PROTOCOL.md` says what it is called with."""

import ctypes
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol

# What the package from the index is linked with, even where it computes on the CPU: `nvidia-*-cu11`, in the order of loading.
LIBRARIES = ["cublas/lib/libcublasLt.so.11", "cublas/lib/libcublas.so.11", "cudnn/lib/libcudnn_ops_infer.so.8",
             "cudnn/lib/libcudnn_cnn_infer.so.8", "cudnn/lib/libcudnn_ops_train.so.8", "cudnn/lib/libcudnn_cnn_train.so.8"]


def load(_request):
    os.environ["ONEFLOW_ENABLE_ONEDNN_OPTS"] = "1"
    for folder in map(Path, sys.path):
        for library in LIBRARIES:
            if (folder / "nvidia" / library).exists():
                ctypes.CDLL(str(folder / "nvidia" / library), ctypes.RTLD_GLOBAL)
    import oneflow_peer
    return oneflow_peer.OneFlow()


if __name__ == "__main__":
    protocol.main(load)
