"""PaddlePaddle as a peer; `../PROTOCOL.md` says what it is called with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(_request):
    os.environ["FLAGS_use_mkldnn"] = "1"
    import paddle_peer
    return paddle_peer.Paddle()


if __name__ == "__main__":
    protocol.main(load)
