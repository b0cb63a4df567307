"""torchvision's ResNet-50 as an ONNX file, `images` f32 [batch, 3, 224, 224] to `logits` [batch, 1000].

    python onnx_resnet50.py OUT.onnx [--weights FILE] [--seed N]

The export runs in a process of its own, so that PyTorch does not count as memory of whoever runs the file.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def add_arguments(parser):
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "resnet50-onnx",
                        help="folder for the ONNX file, which is made where it is missing (default: %(default)s)")


def file(args):
    """Path of the ONNX file for these weights; exported unless it is in the scratch folder."""
    path = args.scratch / f"resnet50-{identity(args)}.onnx"
    if not path.exists():
        args.scratch.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        weights = ["--weights", args.weights] if args.weights else []
        subprocess.run([sys.executable, __file__, unfinished, "--seed", str(args.seed), *weights], check=True,
                       stdout=sys.stderr)
        unfinished.rename(path)
    return path


def identity(args):
    if not args.weights:
        return f"seed{args.seed}"
    status = os.stat(args.weights)
    return f"{Path(args.weights).stem}-{status.st_size}-{status.st_mtime_ns}"


def export(path, weights, seed):
    import torch
    import torch_resnet50
    model = torch_resnet50.make(weights, seed).eval()
    torch.onnx.export(model, torch.zeros(1, 3, 224, 224), path, dynamo=False, input_names=["images"],
                      output_names=["logits"], dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--weights")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    export(args.out, args.weights, args.seed)


if __name__ == "__main__":
    main()
