"""Ends in the middle of a timed run."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import fake


def crash(word, request):
    if word == "run" and request["purpose"] == "time":
        raise ValueError("a tensor went missing")


fake.main("crashing", before=crash)
