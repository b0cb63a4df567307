"""ONNX files that are made where they are missing."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def add_arguments(parser, folder):
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / folder,
                        help="folder for the ONNX file, which is made where it is missing (default: %(default)s)")


def made(args, name, script, words=()):
    """Path of NAME.onnx in the scratch folder, written by `script` in a process of its own unless it is there."""
    path = args.scratch / f"{name}.onnx"
    if not path.exists():
        args.scratch.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        weights = ["--weights", args.weights] if args.weights else []
        subprocess.run([sys.executable, script, unfinished, "--seed", str(args.seed), *weights, *words], check=True,
                       stdout=sys.stderr)
        unfinished.rename(path)
    return path


def identity(args):
    """Of the weights."""
    if not args.weights:
        return f"seed{args.seed}"
    status = os.stat(args.weights)
    return f"{Path(args.weights).stem}-{status.st_size}-{status.st_mtime_ns}"
