"""JAX as a peer; `../PROTOCOL.md` says what it is called with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import protocol


def load(request):
    if request:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(request.cache) / "xla")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        use_threads(request.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax_peer
    return jax_peer.Jax()


def use_threads(count):
    """XLA has a thread for each processor that the process may run on when it first computes."""
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise protocol.Cannot(f"{count} threads: only {len(allowed)} processors may be used")
    os.sched_setaffinity(0, allowed[:count])


if __name__ == "__main__":
    protocol.main(load)
