"""The timed loop."""

import time
from dataclasses import dataclass


@dataclass
class Timing:
    """`results` of all steps, those of the warm-up included; the end of the warm-up and of each timed step, seconds."""

    results: list
    stamps: list

    def step_ms(self):
        return [1000 * (end - start) for start, end in zip(self.stamps, self.stamps[1:])]

    def seconds(self):
        return self.stamps[-1] - self.stamps[0]


def run(step, batches, warmup, steps):
    """Calls `step(batch)` for `warmup` + `steps` batches, cycling through them."""
    results, stamps = [], []
    if warmup == 0:
        stamps.append(time.perf_counter())
    for index in range(warmup + steps):
        results.append(step(index % batches))
        if index >= warmup - 1:
            stamps.append(time.perf_counter())
    return Timing(results, stamps)
