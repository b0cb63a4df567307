"""What the timing scripts share: their command line, the batches, the timed loop, the line of JSON.

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

SIZE = 224
CLASSES = 1000
STARTED = time.perf_counter()


def parser(description, modes, precisions):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=modes)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("warmup", type=int)
    parser.add_argument("--weights", help="safetensors with torchvision's names (default: seeded random)")
    parser.add_argument("--batches", 
                        help="safetensors with `images` f32 [K, N, H, W, 3], normalised, and `labels` i32 [K, N]")
    parser.add_argument("--outputs", help="write the `logits` [N, 1000] of the last step to this safetensors file")
    parser.add_argument("--precision", choices=precisions, default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    return parser


def batches(args):
    """Pairs of images f32 [N, H, W, 3] and labels i64 [N]: those of `--batches`, or a seeded one."""
    if args.batches:
        from safetensors.numpy import load_file
        tensors = load_file(args.batches)
        if tensors["images"].shape[1] != args.batch_size:
            raise SystemExit(f"{args.batches}: batches of {tensors['images'].shape[1]}, but BATCH is {args.batch_size}")
        return list(zip(tensors["images"], tensors["labels"].astype(np.int64)))
    random = np.random.default_rng(args.seed)
    images = random.standard_normal((args.batch_size, SIZE, SIZE, 3), dtype=np.float32)
    return [(images, random.integers(0, CLASSES, args.batch_size))]


def to_nchw(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


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


def write_outputs(path, logits):
    from safetensors.numpy import save_file
    save_file({"logits": np.ascontiguousarray(logits, dtype=np.float32)}, path)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def event(framework, version, mode, precision, batch_size, threads, options):
    """A `bench` event without figures."""
    return {
        "v": 1, "time": time.time(), "elapsed": 0.0, "rank": 0, "step": None, "kind": "bench",
        "framework": framework, "framework_version": version, "model": "resnet50", "mode": mode, "precision": precision,
        "device": "cpu", "device_name": processor(), "devices": 1, "nodes": 1, "threads": threads,
        "batch_size": batch_size, "data": "synthetic", "options": options, "warmup": 0, "steps": 0, "repeat": 1,
        "throughput": 0.0, "unit": "images/s", "step_ms": step_times([0.0]), "published_style": published_style([0.0]),
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


def print_event(args, timing, framework, version, options, import_memory_bytes):
    """The line of a measurement. Results of training are losses."""
    throughput = args.batch_size * args.steps / timing.seconds()
    line = event(framework, version, args.mode, args.precision, args.batch_size, args.threads, options)
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

