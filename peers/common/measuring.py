"""What the timing scripts share: their command line, the timed loop, the line of JSON.

A line is a `bench` event as `bessemer bench --json` writes it, so that `bessemer report` reads it, with these fields
more: `step_ms_each` (every timed step in order) and `import_memory_bytes` (resident memory once the framework was
imported, before there was a model).
"""

import argparse
import json
import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

STARTED = time.perf_counter()


def parser(description, modes, precisions):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=modes)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4, help="steps that count (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=1, help="steps that do not (default: %(default)s)")
    parser.add_argument("--outputs", help="write the outputs of the last step to this safetensors file")
    parser.add_argument("--precision", choices=precisions, default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    return parser


@dataclass
class Timing:
    """`results` of all steps, those of the warm-up included; the end of the warm-up and of each timed step, seconds."""
    results: list
    stamps: list

    def step_ms(self):
        return (np.diff(self.stamps) * 1000).tolist()

    def seconds(self):
        return self.stamps[-1] - self.stamps[0]


def run(step, batches, args):
    """Calls `step(*batch)` for `args.warmup` + `args.steps` batches, cycling through them."""
    results, stamps = [], []
    for index in range(args.warmup + args.steps):
        if index == args.warmup:
            stamps.append(time.perf_counter())
        results.append(step(*batches[index % len(batches)]))
        if index >= args.warmup:
            stamps.append(time.perf_counter())
    return Timing(results, stamps)


def write_outputs(path, **outputs):
    from safetensors.numpy import save_file
    save_file({name: np.ascontiguousarray(output, dtype=np.float32) for name, output in outputs.items()}, path)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def unit(model):
    return "sequences/s" if model.startswith("bert") else "images/s"


def event(model, framework, version, mode, precision, batch_size, threads, options):
    """A `bench` event without figures."""
    return {
        "v": 1, "time": time.time(), "elapsed": 0.0, "rank": 0, "step": None, "kind": "bench",
        "framework": framework, "framework_version": version, "model": model, "mode": mode, "precision": precision,
        "device": "cpu", "device_name": processor(), "devices": 1, "nodes": 1, "threads": threads,
        "batch_size": batch_size, "data": "synthetic", "options": options, "warmup": 0, "steps": 0, "repeat": 1,
        "throughput": 0.0, "unit": unit(model), "step_ms": step_times([0.0]), "published_style": published_style([0.0]),
        "runs": [], "spread": 0.0, "peak_memory_bytes": None, "flops_per_sample": None, "fraction_of_peak": None,
        "loss_first": None, "loss_last": None,
    }


def step_times(milliseconds):
    quantiles = {f"p{percent}": float(np.percentile(milliseconds, percent)) for percent in (50, 90, 95, 99)}
    return {"mean": float(np.mean(milliseconds)), **quantiles, "min": min(milliseconds), "max": max(milliseconds)}


def published_style(milliseconds):
    """What published tables call a 90 % latency: the mean of the fastest 90 %, the mean plus 1.645 standard errors."""
    fastest = sorted(milliseconds)[:-(-len(milliseconds) * 9 // 10)]
    error = np.std(milliseconds) / len(milliseconds) ** 0.5
    return {"mean_fastest_90_ms": float(np.mean(fastest)), "ci_90_ms": float(np.mean(milliseconds) + 1.645 * error)}


def print_event(args, model, timing, framework, version, options, import_memory_bytes):
    """The line of a measurement. Results of training are losses."""
    throughput = args.batch_size * args.steps / timing.seconds()
    line = event(model, framework, version, args.mode, args.precision, args.batch_size, args.threads, options)
    losses = timing.results if args.mode == "train" else [None]
    line |= {
        "elapsed": time.perf_counter() - STARTED,
        "data": args.batches or "synthetic", "warmup": args.warmup, "steps": args.steps,
        "throughput": throughput, "runs": [{"throughput": throughput}],
        "step_ms": step_times(timing.step_ms()), "published_style": published_style(timing.step_ms()),
        "step_ms_each": timing.step_ms(), "loss_first": losses[0], "loss_last": losses[-1],
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "import_memory_bytes": import_memory_bytes,
    }
    print(json.dumps(line))

