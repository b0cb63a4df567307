"""TensorFlow as a peer; `../PROTOCOL.md` says what it is called with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(_request):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
    import tf_peer
    return tf_peer.TensorFlow()


if __name__ == "__main__":
    protocol.main(load)
