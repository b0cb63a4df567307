"""Checks that what is timed computes the same: one set of weights and one batch through every framework.

    python check_resnet50.py [--bessemer PROGRAM] [--photos DIR] [--weights FILE] [--batch-size N] [--threads N]

The logits of each `bench_resnet50.py`, in each precision that the processor has, are compared with torchvision's in
float64. The photos of DIR (its first N by name; drawn if not given) are resized to 256 and cropped to 224. Without
`--weights` they are random ones whose running statistics come from the photos, so that each has logits of its own.

Bessemer takes pictures, no tensors: `bessemer infer` gets the photos as PNG of the resized size, which it reads as they
are, and tells the probabilities of all classes, whose logarithms are compared. It gets the files themselves as well,
where its own decoder and resizing differ by a level here and there: there the first five classes must be the same,
but that classes whose probabilities are within a tenth may change places.

Allowed, in relative L2: 1e-4 in fp32; 0.02 in bf16, and for the files. The exit status is 1 if anything is further off.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from torchvision.transforms import functional as F

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "common"), str(HERE / "pytorch")]
import resnet_reference as reference
import run_once
import torch_resnet50

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
ALLOWED = {"fp32": 1e-4, "bf16": 0.02}
ALLOWED_RESIZED = 0.02
TOP = 5
TIE = 0.1
LIMIT_S = 600


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bessemer", type=Path)
    parser.add_argument("--photos", type=Path, help="folder with JPEG or PNG files")
    parser.add_argument("--weights", help="safetensors with torchvision's names")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def photo_files(args, scratch):
    if args.photos:
        files = sorted(path for path in args.photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        if len(files) < args.batch_size:
            raise SystemExit(f"{args.photos}: {len(files)} pictures, but --batch-size is {args.batch_size}")
        return files[:args.batch_size]
    random = np.random.default_rng(args.seed)
    return [draw(scratch / f"drawn-{index}.png", random) for index in range(args.batch_size)]


def draw(path, random):
    """A picture of soft random blots."""
    blots = Image.fromarray(random.integers(0, 256, (8, 10, 3), dtype=np.uint8))
    blots.resize((400, 320), Image.Resampling.BICUBIC).save(path)
    return path


def resized(path):
    return F.resize(Image.open(path).convert("RGB"), 256)


def normalised(picture):
    """f32 [3, 224, 224]"""
    return F.normalize(F.to_tensor(F.center_crop(picture, 224)), MEAN, STD)


def make_weights(path, images, seed):
    """Seeded random weights with the running statistics of `images`, and logits that spread over several units."""
    model = torch_resnet50.make(seed=seed)
    reference.damp_blocks(model, 0.2)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        model.train()(images)
        model.fc.weight *= 2 / model.eval()(images).std()
    reference.write_tensors(path, model.state_dict())


def commands(args):
    """(name, precision, command) of what is timed for inference."""
    batch = ["infer", "--batch-size", str(args.batch_size), "--steps", "1", "--warmup", "0",
             "--threads", str(args.threads)]
    for name, script, extra, precisions in [
        ("PyTorch eager", "pytorch", [], ["fp32", "bf16"]),
        ("PyTorch compiled", "pytorch", ["--compile"], ["fp32", "bf16"]),
        ("ONNX Runtime", "onnxruntime", [], ["fp32"]), ("OpenVINO", "openvino", [], ["fp32", "bf16"]),
    ]:
        for precision in precisions:
            yield name, precision, [sys.executable, HERE / script / "bench_resnet50.py", *batch, *extra,
                                    "--precision", precision]


def relative_l2(value, truth):
    return reference.relative_l2(torch.as_tensor(value), torch.as_tensor(truth))


def verdict(name, what, distance, allowed):
    good = distance <= allowed
    print(f"{name:18} {what:34} {distance:9.2e} of {allowed:.0e} allowed  {'ok' if good else 'TOO FAR'}")
    return good


def not_checked(name, precision, failure):
    """A processor or a program may lack bf16, but not fp32."""
    print(f"{name:18} {precision}: not checked: {failure}")
    return precision != "fp32"


def check_peer(name, precision, command, weights, batches, truth, scratch):
    outputs = scratch / "outputs.safetensors"
    given = ["--weights", weights, "--batches", batches, "--outputs", outputs]
    if name in ("ONNX Runtime", "OpenVINO"):
        given += ["--scratch", scratch]
    _, failure = run_once.run([str(word) for word in [*command, *given]], LIMIT_S)
    if failure:
        return not_checked(name, precision, failure)
    return verdict(name, f"logits, {precision}", relative_l2(load_file(outputs)["logits"], truth), ALLOWED[precision])


def probabilities(args, precision, weights, files):
    """Of all classes as `bessemer infer` tells them, [N, 1000]; `RuntimeError` where it fails."""
    command = [args.bessemer, "infer", "resnet50", "--weights", weights, "--top", "1000", "--json",
               "--precision", precision, "--threads", args.threads, *files]
    output, failure = run_once.run([str(word) for word in command], LIMIT_S)
    if failure:
        raise RuntimeError(failure)
    result = np.zeros((len(files), 1000))
    for row, prediction in zip(result, json.loads(output)):
        for score in prediction["classes"]:
            row[score["class"]] = score["probability"]
    return result


def same_first_classes(ours, theirs):
    """Whether the first classes of one photo agree, but for the order of those that are as good as equal."""
    best_ours, best_theirs = (np.argsort(-values, kind="stable")[:TOP] for values in (ours, theirs))
    return np.allclose(theirs[best_ours], theirs[best_theirs], rtol=TIE, atol=0)


def check_bessemer(args, precision, weights, files, truth, scratch):
    whole = []
    for index, path in enumerate(files):
        whole.append(scratch / f"resized-{index}.png")
        resized(path).save(whole[-1])
    log_truth = torch.log_softmax(torch.as_tensor(truth), dim=1)
    try:
        of_resized, of_files = (probabilities(args, precision, weights, paths) for paths in (whole, files))
    except RuntimeError as failure:
        return not_checked("Bessemer", precision, failure)
    distances = [relative_l2(np.log(values), log_truth) for values in (of_resized, of_files)]
    good = [
        verdict("Bessemer", f"log-probabilities, {precision}", distances[0], ALLOWED[precision]),
        verdict("Bessemer", f"the same of the files, {precision}", distances[1], ALLOWED_RESIZED),
    ]
    same = sum(map(same_first_classes, of_files, log_truth.exp().numpy()))
    print(f"{'Bessemer':18} first {TOP} classes of the files, {precision}: {same} of {len(files)} agree  "
          f"{'ok' if same == len(files) else 'DIFFERENT'}")
    return all(good) and same == len(files)


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        files = photo_files(args, scratch)
        images = torch.stack([normalised(resized(path)) for path in files])
        weights = Path(args.weights) if args.weights else scratch / "weights.safetensors"
        if not args.weights:
            make_weights(weights, images, args.seed)
        batches = scratch / "batches.safetensors"
        save_file({"images": np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy()[None]),
                   "labels": np.zeros((1, len(files)), np.int32)}, batches)
        truth = reference.eval_logits(torch_resnet50.make(str(weights)).double(), images.double()).numpy()
        good = [check_peer(*command, weights, batches, truth, scratch) for command in commands(args)]
        if args.bessemer:
            good += [check_bessemer(args, precision, weights, files, truth, scratch) for precision in ALLOWED]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
