"""The program of a peer: reads the request, does the work, answers with a line of JSON. `peers/PROTOCOL.md` says what is spoken.

An adapter calls `main(load)`, where `load(request)` imports the framework and gives a `Peer`.
"""

import json
import math
import os
import sys
import traceback
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Optional

from . import memory, timing
from .work import DETECTORS, FAMILIES, Cannot, Work, family_of, write_outputs

VERSION = 1
FAILED, CANNOT, OUT_OF_MEMORY = 1, 3, 4
SIGNS_OF_FULL_MEMORY = ("out of memory", "can't allocate memory", "oom when allocating", "bad_alloc", "bad allocation",
                        "resource_exhausted", "resourceexhausted", "failed to allocate memory")


@dataclass(frozen=True)
class Request:
    variant: str
    model: str
    mode: str
    batch_size: int
    precision: str
    threads: int
    warmup: int
    steps: int
    seed: int
    purpose: str
    work: str
    cache: str
    outputs: Optional[str] = None
    device: str = "cpu"

    @property
    def device_kind(self):
        """`cpu` or `cuda`"""
        return self.device.partition(":")[0]

    @property
    def trains(self):
        return self.mode == "train"

    @property
    def checks(self):
        return self.purpose == "check"


class Peer:
    """A framework. `variants` are those of `describe`; `offers` what it can do, from `offer`."""

    framework: str
    version: str
    variants: list
    offers: list

    def step(self, request, work):
        """The function of a step, and options that a reader should know. It takes the number of a batch in `work`, and gives the
        loss in training, and the outputs by name in inference: NumPy arrays without an axis of batches.
        """
        raise NotImplementedError

    def peak_memory_bytes(self, request):
        """The most memory that was held: of the process, or of the device if it is not the processors."""
        return memory.peak_bytes()

    def prepare(self, request, work):
        """Fills `request.cache`: here by two steps, whose compiled code is kept there."""
        step, _ = self.step(request, work)
        for index in range(2):
            step(index % work.batches)


def offer(modes, precisions=("fp32",), emulated=(), detectors=None, device="cpu"):
    """Lines of `work` in the answer to `describe`, of a kind of device. `detectors` says of each family of them what its inference
    can end with; there are no others.
    """
    detectors = detectors or {}
    lines = []
    for family, model in FAMILIES.items():
        if family in DETECTORS and family not in detectors:
            continue
        for mode in modes:
            line = {"model": model, "mode": mode, "precisions": list(precisions), "emulated": list(emulated), "device": device}
            if family in DETECTORS and mode == "infer":
                line["outputs"] = list(detectors[family])
            lines.append(line)
    return lines


def bf16_in_software():
    """Precisions and emulated ones of a framework that runs bf16 on every processor."""
    has = bool({"avx512_bf16", "amx_bf16", "bf16"} & processor_flags())
    return {"precisions": ["fp32", "bf16"]} if has else {"precisions": ["fp32"], "emulated": ["bf16"]}


def processor_flags():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split(":", 1)[1].split()}


def main(load):
    try:
        command, request = read(sys.argv[1:])
        if request:
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
                os.environ[name] = str(request.threads)
            Path(request.cache).mkdir(parents=True, exist_ok=True)
        answer = answer_to(command, request, load(request))
    except (Cannot, ImportError) as reason:
        fail(reason, CANNOT)
    except Exception as reason:
        traceback.print_exc()
        fail(reason, OUT_OF_MEMORY if is_full_memory(reason) else FAILED)
    print(json.dumps(dict(answer, protocol=VERSION)), flush=True)


def fail(reason, status):
    sys.stdout.flush()
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    print(f"error: {lines[0]}", file=sys.stderr, flush=True)
    sys.exit(status)


def is_full_memory(reason):
    return isinstance(reason, MemoryError) or any(sign in str(reason).lower() for sign in SIGNS_OF_FULL_MEMORY)


def read(words):
    """The command, and its request if it has one."""
    if words == ["describe"]:
        return "describe", None
    if len(words) != 2 or words[0] not in ("prepare", "run"):
        raise Cannot("usage: adapter.py describe | prepare REQUEST.json | run REQUEST.json")
    command, path = words
    known = json.loads(Path(path).read_text())
    if known.get("protocol") != VERSION:
        raise Cannot(f"{path}: protocol {known.get('protocol')}, but this adapter speaks {VERSION}")
    names = {field.name for field in fields(Request)}
    missing = names - set(known) - {"outputs", "device"}
    if missing:
        raise Cannot(f"{path}: no {', '.join(sorted(missing))}")
    return command, Request(**{name: value for name, value in known.items() if name in names})


def answer_to(command, request, peer):
    about = {"framework": peer.framework, "version": peer.version}
    if command == "describe":
        return dict(about, variants=peer.variants, work=peer.offers)
    import_memory = memory.resident_bytes()
    offers = check_offer(request, peer)
    work = Work(request.work, is_dropped=not request.checks)
    work.check(request)
    if work.ends_with() and not any(work.ends_with() in offer["outputs"] for offer in offers):
        raise Cannot(f"{peer.framework} does not infer {request.model} to {work.ends_with()}")
    if command == "prepare":
        peer.prepare(request, work)
        return {}
    return dict(about, **run(request, peer, work), import_memory_bytes=import_memory)


def check_offer(request, peer):
    """The offers that are asked for."""
    if request.variant not in [variant["name"] for variant in peer.variants]:
        raise Cannot(f"{peer.framework} has no variant {request.variant}")
    wanted = (FAMILIES[family_of(request.model)], request.mode, request.device_kind)
    offers = [offer for offer in peer.offers if (offer["model"], offer["mode"], offer["device"]) == wanted]
    if not offers:
        raise Cannot(f"{peer.framework} does not {request.mode} {request.model} on {request.device} here")
    if not any(request.precision in offer["precisions"] + offer["emulated"] for offer in offers):
        raise Cannot(f"{peer.framework} has no {request.precision} for this on this device")
    return offers


def run(request, peer, work):
    if request.checks:
        request = replace(request, warmup=0, steps=request.steps if request.trains else work.batches)
    step, options = peer.step(request, work)
    outputs = []

    def kept(index):
        result = step(index)
        if request.checks and not request.trains:
            outputs.append({name: array.copy() for name, array in result.items()})
        return float(result) if request.trains else None

    timed = timing.run(kept, work.batches, request.warmup, request.steps)
    if outputs and request.outputs:
        write_outputs(request.outputs, outputs)
    answer = {"options": options, "step_ms": timed.step_ms(), "window_s": timed.seconds(),
              "peak_memory_bytes": peer.peak_memory_bytes(request)}
    if request.trains:
        for number, loss in enumerate(timed.results, 1):
            if not math.isfinite(loss):
                raise ArithmeticError(f"the loss of step {number} of {len(timed.results)} is {loss}")
        answer["losses"] = timed.results
    return answer
