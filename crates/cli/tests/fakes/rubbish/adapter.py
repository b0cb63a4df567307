"""Says nothing of use when it is timed."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import fake


def babble(word, request):
    if word == "run" and request["purpose"] == "time":
        print("loss: 7\n[1, 2, 3]")
        sys.exit(0)


fake.main("rubbish", before=babble)
