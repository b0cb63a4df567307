"""The model of a work folder as an ONNX file, exported by PyTorch.

    python -m peer.onnx_file WORK OUT.onnx

`images` f32 [batch, 3, H, W] to `logits` or, of a detector, to the outputs of all levels, [batch, channels, H, W]; or feeds i32 by name
to what `PROTOCOL.md` calls outputs. The export runs in a process
of its own, so that PyTorch does not count as memory of whoever runs the file.
"""

import os
import subprocess
import sys
from pathlib import Path

from .work import INPUTS, LEVELS, OUTPUTS, Work


def made(work, cache):
    """Path of the file, which is exported unless the cache has it."""
    path = Path(cache) / f"{work.identity()}.onnx"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        folder = str(Path(__file__).resolve().parents[1])
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        subprocess.run([sys.executable, "-m", "peer.onnx_file", str(work.folder), str(unfinished)], check=True,
                       stdout=sys.stderr, env=dict(os.environ, PYTHONPATH=paths))
        unfinished.rename(path)
    return path


def inputs(work):
    """Arrays of each batch by the names of the file's inputs."""
    if work.family in INPUTS:
        return work.inputs()
    import numpy as np
    return [{"images": np.ascontiguousarray(images.transpose(0, 3, 1, 2))} for images in work.images()]


def output_shapes(work):
    batch, sizes = work.batch_size, work.sizes
    if work.family == "resnet":
        return {"logits": [batch, sizes.classes]}
    if work.family == "bert":
        return {"mlm_logits": [batch, sizes.predictions, sizes.vocab_size], "nsp_logits": [batch, 2]}
    if work.family == "electra":
        return {name: [batch, sizes.sequence_length] for name in OUTPUTS["electra"]}
    anchors = sizes.anchor_octaves * len(sizes.anchor_aspects)
    widths = {"classes": anchors * sizes.classes, "boxes": anchors * 4}
    sides = {level: sizes.image_size >> level for level in LEVELS}
    return {f"{part}.{level}": [batch, width, sides[level], sides[level]] for part, width in widths.items() for level in LEVELS}


def export(work, path):
    import torch
    if work.family == "resnet":
        from . import torch_resnet
        model, names = torch_resnet.make(work), ["images"]
    elif work.family == "efficientdet":
        from . import torch_efficientdet
        model, names = torch_efficientdet.make(work), ["images"]
    else:
        from . import torch_text
        model, names = torch_text.FromInt32(torch_text.make(work)), INPUTS[work.family]
    examples = tuple(torch.from_numpy(inputs(work)[0][name]) for name in names)
    output_names = work.output_names()
    axes = {name: {0: "batch"} for name in names + output_names}
    torch.onnx.export(model.eval(), examples, path, dynamo=False, input_names=names, output_names=output_names,
                      opset_version=20, dynamic_axes=axes)


if __name__ == "__main__":
    export(Work(sys.argv[1]), sys.argv[2])
