"""ONNX Runtime as a peer; `../PROTOCOL.md` says what it is called with."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(_request):
    import ort_peer
    return ort_peer.OnnxRuntime()


if __name__ == "__main__":
    protocol.main(load)
