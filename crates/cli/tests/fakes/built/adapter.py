"""Does what it should, behind a program in Rust."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import fake

fake.main("built")
