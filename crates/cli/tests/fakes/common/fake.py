"""A framework that computes nothing: what it answers is what Bessemer computed, and its steps are naps.

It calls Bessemer for a check, so that its losses and outputs are right. BESSEMER names the program. Faults are added
by the adapters.
"""

import json
import os
import struct
import subprocess
import sys
import time

NAP_S = float(os.environ.get("FAKE_NAP_S", "0.002"))


def describe(name):
    work = [{"model": model, "mode": mode, "precisions": ["fp32"]}
            for model in ("bert-base", "resnet50", "electra-base-squad") for mode in ("train", "infer")]
    work[0]["precisions"].append("bf16")
    work[0]["emulated"] = ["bf16"]
    work.append({"model": "efficientdet-d0", "mode": "infer", "precisions": ["fp32"], "outputs": ["detections"]})
    variants = [{"name": "plain", "fused": False, "default": True, "settings": ""},
                {"name": "merged", "fused": True, "default": False, "settings": ""}]
    return {"protocol": 1, "framework": name, "version": "1.2.3", "variants": variants, "work": work}


def as_bessemer(request):
    """What Bessemer answers to the request."""
    path = os.path.join(request["cache"], "as-bessemer.json")
    with open(path, "w") as file:
        json.dump(request | {"variant": "fused"}, file)
    said = subprocess.run([os.environ["BESSEMER"], "peer", "run", path], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def nap(request):
    """Steps of sleep, timed as in any framework."""
    for _ in range(request["warmup"]):
        time.sleep(NAP_S)
    mark("before_begin")
    start = last = time.perf_counter()
    mark("after_begin")
    stamps = []
    for step in range(request["steps"]):
        time.sleep(NAP_S)
        if step == request["steps"] - 1:
            mark("before_end")
        now = time.perf_counter()
        stamps.append((now - last) * 1000)
        last = now
    mark("after_end")
    return {"step_ms": stamps, "window_s": last - start, "losses": [1.0] * (request["warmup"] + request["steps"]),
            "peak_memory_bytes": 1_000_000, "import_memory_bytes": 500_000}


def mark(what):
    """A file whose time of writing tells when it was, if the test wants one."""
    if os.environ.get("FAKE_MARKS"):
        with open(f"{os.environ['FAKE_MARKS']}.{what}", "w") as file:
            file.write(what)


def run(name, request):
    found = as_bessemer(request) if request["purpose"] == "check" else nap(request)
    return found | {"protocol": 1, "framework": name, "version": "1.2.3", "options": {"nap_s": NAP_S}}


def note_call(word, request):
    """Keeps a count of timed runs for the test, if it wants one."""
    if os.environ.get("FAKE_CALLS") and word == "run":
        with open(os.environ["FAKE_CALLS"], "a") as file:
            file.write(f"{request['purpose']} {request['variant']} b{request['batch_size']} {request['mode']}\n")


def main(name, before=lambda word, request: None, after=lambda answer, request: answer):
    word = sys.argv[1]
    request = None
    if len(sys.argv) > 2:
        with open(sys.argv[2]) as file:
            request = json.load(file)
    note_call(word, request)
    before(word, request)
    print("what a library says on its way")
    if word == "describe":
        answer = describe(name)
    elif word == "prepare":
        answer = {"protocol": 1}
    else:
        answer = after(run(name, request), request)
    print(json.dumps(answer))


def shift_outputs(path, factor):
    """Multiplies all numbers of a safetensors file of f32."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    for at in range(begin, len(data), 4):
        data[at:at + 4] = struct.pack("<f", factor * struct.unpack("<f", data[at:at + 4])[0])
    with open(path, "wb") as file:
        file.write(data)
