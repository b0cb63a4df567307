"""Checks ONNX files that `bessemer weights convert --to onnx` writes: in ONNX Runtime they must give what Bessemer gives.

    pip install numpy onnx onnxruntime safetensors, and what peers/pytorch/requirements.txt lists
    python3 check_export.py --program target/release/bessemer [MODEL ...]       weights at random, labelled so
    python3 check_export.py --program target/release/bessemer --images FOLDER --weights resnet20.safetensors resnet20-cifar

Without --images each model gets random weights and random inputs (the work folder of `peers/common/make_work.py`), the greatest
difference of each output is printed over the output's largest element. It must not pass 1e-5, or else ONNX Runtime must be no more than
twice as far from float64 (PyTorch's, as `peers/check.py` computes it) as it is with the network as PyTorch exports it. Batches of 1 and of 3 are run in ONNX Runtime and must
agree with each other. With --images (a folder with `images_u8_nhwc.bin`, `labels_u8.bin` and `expected.json`) the
images that are classified rightly are counted.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE.parent / "common"
sys.path[:0] = [str(HERE.parent)]
import check

MODELS = ["resnet50", "bert-base", "electra-base-squad", "efficientdet-d0"]
ALLOWED = 1e-5


def call(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def session(path):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    said = {entry.key: entry.value for entry in model.metadata_props}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    found = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    print(f"{path.name}: {len(model.graph.node)} nodes, opset {model.opset_import[0].version}, {said}")
    return found, said


def names(values):
    return [value.name for value in values]


def check_random(program, model, folder):
    work = folder / "work"
    call(sys.executable, SCRIPTS / "make_work.py", work, model, "infer", "--batch-size", 3, "--network")
    request = {"protocol": 1, "variant": "fused", "model": model, "mode": "infer", "batch_size": 3, "precision": "fp32",
               "threads": 2, "warmup": 0, "steps": 2, "seed": 0, "purpose": "check", "work": str(work),
               "cache": str(folder), "outputs": str(folder / "outputs.safetensors")}
    (folder / "request.json").write_text(json.dumps(request))
    call(program, "peer", "run", folder / "request.json")
    wanted = load_file(folder / "outputs.safetensors")
    request.update(variant="all", outputs=str(folder / "exported.safetensors"))
    (folder / "request.json").write_text(json.dumps(request))
    call(sys.executable, HERE.parent / "onnxruntime/adapter.py", "run", folder / "request.json")
    exported = load_file(folder / "exported.safetensors")
    truth = {name: np.asarray(array) for name, array in check.Truth(work).outputs().items()}
    path = folder / f"{model}.onnx"
    length = json.loads((work / "work.json").read_text())["sizes"].get("sequence_length")
    more = ["--sequence-length", length] if length else []
    more += ["--outputs", "network"] if model.startswith("efficientdet") else []
    call(program, "weights", "convert", work / "weights.safetensors", path, "--to", "onnx", "--model", model, *more)
    ort, _ = session(path)
    batches = load_file(work / "batches.safetensors")
    constants = json.loads((work / "work.json").read_text()).get("normalise")
    worst, batched, farther = 0.0, 0.0, 0.0
    for batch in range(2):
        inputs = {value.name: fed(value, batches[value.name][batch], constants) for value in ort.get_inputs()}
        outputs = dict(zip(names(ort.get_outputs()), ort.run(None, inputs)))
        first = ort.run(None, {name: array[:1] for name, array in inputs.items()})
        for (name, found), one in zip(outputs.items(), first):
            own, other, true = (array[name][batch].reshape(found.shape) for array in (wanted, exported, truth))
            worst = max(worst, distance(found, own))
            batched = max(batched, distance(found.reshape(3, -1)[:1].reshape(one.shape), one))
            farther = max(farther, distance(found, true) / distance(other, true))
    print(f"  greatest difference from Bessemer, weights at random: {worst:.1e} of the largest element; of batches: {batched:.1e}")
    print(f"  distance from float64 over that of PyTorch's export: {farther:.2f}")
    return (worst <= ALLOWED and batched <= ALLOWED) or farther <= 2


def distance(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def fed(value, array, constants):
    """Images that are floats are normalised and `[N, C, H, W]`."""
    if value.type != "tensor(float)" or array.ndim != 4:
        return array
    mean, std = (np.asarray(constants[name], np.float32) for name in ("mean", "std"))
    return np.ascontiguousarray(((array - mean) / std).transpose(0, 3, 1, 2), np.float32)


def check_images(program, model, weights, images, folder):
    expected = json.loads((images / "expected.json").read_text())
    pixels = np.fromfile(images / "images_u8_nhwc.bin", np.uint8).reshape(-1, 32, 32, 3)
    labels = np.fromfile(images / "labels_u8.bin", np.uint8)
    path = folder / f"{model}.onnx"
    call(program, "weights", "convert", weights, path, "--to", "onnx", "--model", model)
    ort, _ = session(path)
    mean, std = (np.asarray(expected[name], np.float32) for name in ("mean", "std"))
    inputs = np.ascontiguousarray(((pixels / np.float32(255) - mean) / std).transpose(0, 3, 1, 2), np.float32)
    whole = ort.run(None, {"images": inputs})[0]
    parts = [ort.run(None, {"images": inputs[i : i + n]})[0] for i, n in [(0, 1), (1, 3)]]
    assert np.allclose(np.concatenate(parts), whole[:4], atol=1e-5)
    right = int((whole.argmax(1) == labels).sum())
    reference = images / f"{pathlib.Path(weights).stem}_logits_f32.bin"
    if reference.exists():
        logits = np.fromfile(reference, np.float32).reshape(whole.shape)
        print(f"  greatest difference from the reference's logits: {np.abs(whole - logits).max() / np.abs(logits).max():.1e}")
    print(f"  {right} of {len(labels)} right")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--program", default="bessemer")
    parser.add_argument("--images", type=pathlib.Path)
    parser.add_argument("--weights", type=pathlib.Path)
    arguments = parser.parse_args()
    good = True
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            if arguments.images:
                check_images(arguments.program, model, arguments.weights, arguments.images, folder)
            else:
                good &= check_random(arguments.program, model, folder)
    sys.exit(0 if good else 1)


main()
