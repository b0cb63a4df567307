"""MXNet as a peer; `../PROTOCOL.md` says what it is called with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(request):
    if request:
        os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE" if request.variant == "plain" or request.trains else "MKLDNN"
    import mxnet_peer
    return mxnet_peer.MxNet()


if __name__ == "__main__":
    protocol.main(load)
