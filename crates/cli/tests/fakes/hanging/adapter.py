"""Never ends, nor do the processes that it starts. Their numbers go to the file that FAKE_PROCESSES names."""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "common"))
import fake


def hang(word, request):
    if word == "run" and request["purpose"] == "time":
        helper = subprocess.Popen(["sleep", "600"])
        with open(os.environ["FAKE_PROCESSES"], "a") as file:
            file.write(f"{os.getpid()}\n{helper.pid}\n")
        time.sleep(600)


fake.main("hanging", before=hang)
