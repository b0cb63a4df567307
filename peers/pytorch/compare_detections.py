"""Compares what Bessemer detects in photos with what the package `effdet` detects with the same weights.

    compare_detections.py fit coco/ coco512/          # photos that fill the canvas, so that both see the same pixels
    compare_detections.py fit coco/ coco16/ --split train --count 16      # photos to train on, as both halves
    bessemer eval efficientdet-d0 --weights weights.safetensors --data coco512/ --batch-size 4 --out answers/
    compare_detections.py check coco512/ --weights weights.safetensors --predictions answers/bbox.json

`fit` copies a half of a folder in COCO's layout, the training half as both halves of the new folder, with photos scaled to the canvas's longer side, as PNG files. `check` runs the package
on them, pairs detections of one image and class, and scores both by pycocotools; it fails where anything is farther apart than 1e-4.
"""

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from effdet import DetBenchPredict
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer.torch_efficientdet import network

ANNOTATIONS = "annotations/instances_{}2017.json"
MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
# Of scores and twelve numbers; of coordinates, in pixels.
ALLOWED, ALLOWED_PIXELS = 1e-4, 0.05


def fit(source, target, canvas, split, count):
    data = json.loads((source / ANNOTATIONS.format(split)).read_text())
    data["images"] = sorted(data["images"], key=lambda image: image["id"])[:count]
    kept = {image["id"] for image in data["images"]}
    data["annotations"] = [annotation for annotation in data["annotations"] if annotation["image_id"] in kept]
    halves = sorted({split, "val"})
    for folder in ("annotations", *(f"{half}2017" for half in halves)):
        (target / folder).mkdir(parents=True, exist_ok=True)
    scales = {}
    for image in data["images"]:
        picture = Image.open(source / f"{split}2017" / image["file_name"]).convert("RGB")
        scale = canvas / max(picture.size)
        size = [max(1, round(side * scale)) for side in picture.size]
        scales[image["id"]] = [after / before for after, before in zip(size, picture.size)]
        image["file_name"] = Path(image["file_name"]).stem + ".png"
        image["width"], image["height"] = size
        scaled = picture.resize(size, Image.Resampling.BILINEAR)
        for half in halves:
            scaled.save(target / f"{half}2017" / image["file_name"])
    for annotation in data["annotations"]:
        x, y = scales[annotation["image_id"]]
        annotation["bbox"] = [side * scale for side, scale in zip(annotation["bbox"], (x, y, x, y))]
        annotation["area"] *= x * y
        # Masks are not scaled: boxes are what is compared.
        annotation["segmentation"] = [[0, 0, 1, 0, 1, 1]]
        if annotation["iscrowd"]:
            annotation["segmentation"] = {"counts": [image_pixels(data, annotation)], "size": image_size(data, annotation)}
    for half in halves:
        (target / ANNOTATIONS.format(half)).write_text(json.dumps(data))


def image_size(data, annotation):
    image = next(image for image in data["images"] if image["id"] == annotation["image_id"])
    return [image["height"], image["width"]]


def image_pixels(data, annotation):
    height, width = image_size(data, annotation)
    return height * width


def detect(data, folder, weights, canvas):
    """Records of COCO's form, of the package."""
    weights = load_file(weights)
    classes = weights["class_net.predict.conv_pw.bias"].numel() // 9
    model = network(SimpleNamespace(
        image_size=canvas, classes=classes, backbone_width=1.0, backbone_depth=1.0, width=64, cells=3, head_depth=3,
        norm_eps=1e-3, norm_momentum=0.01, anchor_scale=4.0, anchor_octaves=3,
        anchor_aspects=[(1.0, 1.0), (1.4, 0.7), (0.7, 1.4)]))
    wrong = model.load_state_dict(weights, strict=False)
    assert not wrong.unexpected_keys, wrong.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in wrong.missing_keys), wrong.missing_keys
    bench, records = DetBenchPredict(model.eval()), []
    for image in data["images"]:
        pixels = torch.from_numpy(np.asarray(Image.open(folder / image["file_name"])).copy())
        x = torch.zeros(1, 3, canvas, canvas)
        x[0, :, :pixels.shape[0], :pixels.shape[1]] = ((pixels / 255 - MEAN) / STD).permute(2, 0, 1)
        size = torch.tensor([[float(image["width"]), float(image["height"])]])
        with torch.inference_mode():
            found = bench(x, {"img_scale": torch.ones(1), "img_size": size})[0]
        for x1, y1, x2, y2, score, label in found.tolist():
            if label > 0:
                box = [x1, y1, x2 - x1, y2 - y1]
                records.append({"image_id": image["id"], "category_id": int(label), "bbox": box, "score": score})
    return records


def scores(annotations, records):
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        run = COCOeval(truth, truth.loadRes(records), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run.stats


def by_image(records):
    images = {}
    for record in records:
        images.setdefault(record["image_id"], []).append(record)
    return images


def check(folder, weights, predictions, canvas):
    annotations = folder / ANNOTATIONS.format("val")
    data = json.loads(annotations.read_text())
    categories = {category["id"] for category in data["categories"]}
    theirs = [record for record in detect(data, folder / "val2017", weights, canvas) if record["category_id"] in categories]
    ours = json.loads(predictions.read_text())
    their_images, our_images = by_image(theirs), by_image(ours)
    pairs, alone, score_distance, pixel_distance = 0, 0, 0.0, 0.0
    for image in data["images"]:
        free = list(their_images.get(image["id"], []))
        # The last ones of an image can be others where their scores are as good as equal.
        for record in our_images.get(image["id"], []):
            def distance(other):
                return max(abs(a - b) for a, b in zip(record["bbox"], other["bbox"]))
            same = [other for other in free if other["category_id"] == record["category_id"]
                    and abs(other["score"] - record["score"]) <= ALLOWED]
            partner = min(same, key=distance, default=None)
            if partner is None or distance(partner) > ALLOWED_PIXELS:
                alone += 1
                continue
            free.remove(partner)
            pairs += 1
            score_distance = max(score_distance, abs(partner["score"] - record["score"]))
            pixel_distance = max(pixel_distance, distance(partner))
    wanted, found = scores(annotations, theirs), scores(annotations, ours)
    farthest = float(np.abs(wanted - found).max())
    print(f"{len(data['images'])} images, {len(theirs)} detections of effdet, {len(ours)} of Bessemer: {pairs} pairs, {alone} alone")
    print(f"farthest: scores {score_distance:.1e}, corners {pixel_distance:.1e} pixels, the twelve scores {farthest:.1e}")
    print(f"AP {wanted[0]:.6f} and {found[0]:.6f}, AP50 {wanted[1]:.6f} and {found[1]:.6f}")
    return alone <= len(ours) // 1000 and farthest <= ALLOWED


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canvas", type=int, default=512)
    commands = parser.add_subparsers(dest="command", required=True)
    fitting = commands.add_parser("fit")
    fitting.add_argument("source", type=Path)
    fitting.add_argument("target", type=Path)
    fitting.add_argument("--split", choices=["train", "val"], default="val")
    fitting.add_argument("--count", type=int, help="the first ones by id alone")
    checking = commands.add_parser("check")
    checking.add_argument("data", type=Path)
    checking.add_argument("--weights", required=True)
    checking.add_argument("--predictions", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "fit":
        fit(options.source, options.target, options.canvas, options.split, options.count)
    elif not check(options.data, options.weights, options.predictions, options.canvas):
        sys.exit("error: the detections are not the same")


if __name__ == "__main__":
    main()
