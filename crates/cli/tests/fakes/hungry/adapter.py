"""Has memory for five samples. What is more ends by its own word, or by the system's if there are more than six."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import fake


def starve(word, request):
    if word == "run" and request["batch_size"] > 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "run" and request["batch_size"] > 5:
        print("error: out of memory: 6 samples", file=sys.stderr)
        sys.exit(4)


fake.main("hungry", before=starve)
