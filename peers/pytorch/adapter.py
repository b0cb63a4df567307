"""PyTorch as a peer; `../PROTOCOL.md` says what it is called with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(request):
    if request:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(request.cache) / "inductor")
        # Compilers of kernels for GPUs run in `prepare`, when nothing is timed.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1" if request.device == "cpu" else str(os.cpu_count())
    import torch_peer
    # What is imported counts as such, not as memory of the model.
    if request and request.model.startswith("efficientdet"):
        torch_peer.detector()
    if request and request.model.startswith("mask-rcnn"):
        torch_peer.masks()
    return torch_peer.PyTorch()


if __name__ == "__main__":
    protocol.main(load)
