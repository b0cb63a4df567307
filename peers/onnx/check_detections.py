"""Checks the ONNX files of detectors with suppression: in ONNX Runtime they must find what `bessemer infer` finds.

    pip install numpy onnx onnxruntime pillow, and torch and torchvision for masks and for weights at random
    python3 check_detections.py --program target/release/bessemer --images FOLDER --weights runs/NAME MODEL
    python3 check_detections.py --program target/release/bessemer --images FOLDER mask-rcnn        weights at random, labelled so

The images of the folder are scaled to the input of the file, so that both sides see the same pixels. For each image the numbers of
detections must agree, and detection by detection, in falling order of the scores, the classes, the scores (1e-4) and the corners
(0.01 pixels); of detections whose scores differ by less than 1e-4 the order is free. Masks, pasted as torchvision does, must have
an IoU of 0.98. Batches of 1 and of 3 are run.
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
from PIL import Image

TIED, PIXELS, LEAST_IOU = 1e-4, 1e-2, 0.98


def call(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def random_weights(folder):
    """The path of weights with scores that spread: as torchvision makes them, no class reaches 0.05."""
    import torch
    import torchvision
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        if name.endswith("running_var"):
            tensor.fill_(2.0)
    tensors["roi_heads.box_predictor.cls_score.weight"] *= 40.0
    tensors["rpn.head.cls_logits.weight"] *= 10.0
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "random.safetensors")
    return folder / "random.safetensors"


def own(program, model, weights, pictures, folder):
    """By picture what `bessemer infer` writes."""
    call(program, "infer", model, "--weights", weights, "--out", folder, "--score", 0, *pictures)
    found = json.loads((folder / "results.json").read_text())
    by_image = {}
    for detection in found:
        by_image.setdefault(detection["image_id"], []).append(detection)
    return by_image


def pasted(mask, box, height, width):
    import torch
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    masks = paste_masks_in_image(torch.tensor(mask)[None, None], torch.tensor(box)[None], (height, width))
    return masks[0, 0].numpy() > 0.5


def compare(outputs, wanted, height, width, classes):
    """The greatest differences of scores and corners, and the least IoU of masks."""
    count = int(outputs["count"])
    assert count == len(wanted), f"{count} detections, {len(wanted)} in Bessemer"
    left = sorted(wanted, key=lambda detection: -detection["score"])
    scores, corners, overlap = 0.0, 0.0, 1.0
    for d in range(count):
        box, score, label = outputs["boxes"][d], float(outputs["scores"][d]), int(outputs["labels"][d])

        def distance(detection):
            x, y, w, h = detection["bbox"]
            return float(np.abs(np.array([x, y, x + w, y + h]) - box).max())

        near = [other for other in left if abs(other["score"] - score) <= TIED]
        near = [other for other in near if classes.get(label, other["category_id"]) == other["category_id"]]
        assert near, f"nothing like class {label} with {score} at {box}; the next are {left[:3]}"
        other = min(near, key=distance)
        classes.setdefault(label, other["category_id"])
        left.remove(other)
        scores, corners = max(scores, abs(other["score"] - score)), max(corners, distance(other))
        assert distance(other) <= PIXELS, f"{box} is not that of {other}"
        if "masks" in outputs:
            from pycocotools import mask as rle

            ours = rle.decode(other["segmentation"]).astype(bool)
            theirs = pasted(outputs["masks"][d], box, height, width)
            both, any_of_both = (ours & theirs).sum(), (ours | theirs).sum()
            overlap = min(overlap, both / any_of_both if any_of_both else 1.0)
    return scores, corners, overlap


def check(program, model, weights, images, folder):
    path = folder / f"{model}.onnx"
    call(program, "weights", "convert", weights, path, "--to", "onnx", "--model", model)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    _, height, width, _ = session.get_inputs()[0].shape
    pictures, pixels = [], []
    for number, source in enumerate(sorted(path for path in images.iterdir() if path.suffix in {".jpg", ".png"})[:6]):
        picture = Image.open(source).convert("RGB").resize((width, height))
        pictures.append(folder / f"{number:012}.png")
        picture.save(pictures[-1])
        pixels.append(np.asarray(picture))
    wanted = own(program, model, weights, pictures, folder / "drawn")
    pixels, sizes = np.stack(pixels), np.array([[height, width]] * len(pixels), np.float32)
    classes, worst, total = {}, np.array([0.0, 0.0, 1.0]), 0
    for first, last in [(0, 1), (1, 2), (0, 3), (3, len(pixels))]:
        found = session.run(None, {"images": pixels[first:last], "sizes": sizes[first:last]})
        found = dict(zip(names, found))
        for i in range(first, last):
            outputs = {name: array[i - first] for name, array in found.items()}
            total += int(outputs["count"])
            scores, corners, overlap = compare(outputs, wanted.get(i, []), height, width, classes)
            worst = np.array([max(worst[0], scores), max(worst[1], corners), min(worst[2], overlap)])
    assert total, "nothing is detected"
    assert len(set(classes.values())) == len(classes)
    print(f"{model}: {total} detections at {height} x {width}, those of Bessemer; greatest difference of scores {worst[0]:.1e}, "
          f"of corners {worst[1]:.1e} pixels; least IoU of masks {worst[2]:.3f}")
    return worst[2] >= LEAST_IOU


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--program", default="bessemer")
    parser.add_argument("--images", type=pathlib.Path, required=True)
    parser.add_argument("--weights", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.weights is None and arguments.model != "mask-rcnn":
        parser.error("only mask-rcnn has weights at random; others need --weights")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        weights = arguments.weights or random_weights(folder)
        sys.exit(0 if check(arguments.program, arguments.model, weights, arguments.images, folder) else 1)


main()
