"""PaddlePaddle as a peer; `../PROTOCOL.md` says what it is called with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(request):
    if request:
        # Its kernels in a static graph that is trained end in an error.
        os.environ["FLAGS_use_mkldnn"] = str(int(not (request.trains and request.variant == "static")))
        os.environ["FLAGS_paddle_num_threads"] = str(request.threads)
    import paddle_peer
    return paddle_peer.Paddle()


if __name__ == "__main__":
    protocol.main(load)
