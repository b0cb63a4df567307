#!/usr/bin/env python3
"""Images per second of a PyTorch DataLoader that does the work of `bessemer bench data efficientdet-d0`.

    python load_coco.py IMAGES ANNOTATIONS --workers 1 --seconds 10
    bessemer bench data efficientdet-d0 --data COCO --workers 1 --no-step

Reads and decodes a file (Pillow), mirrors it with probability 1/2, scales it by 0.1 to 2, crops or pads it to 512 x 512, moves and
cuts off its boxes, and collates batches of 16 bytes, boxes padded to 100. Needs torch, torchvision, pillow and numpy.
"""

import argparse
import json
import pathlib
import random
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MOST = 100


class Coco(Dataset):
    def __init__(self, images, annotations, size, resize):
        data = json.loads(annotations.read_text())
        self.folder, self.size, self.resize = images, size, resize
        self.images = sorted(data["images"], key=lambda image: image["id"])
        self.objects = {image["id"]: [] for image in self.images}
        for annotation in data["annotations"]:
            if not annotation.get("iscrowd", 0):
                self.objects[annotation["image_id"]].append(annotation)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        entry, side = self.images[index], self.size
        image = Image.open(self.folder / entry["file_name"]).convert("RGB")
        width, height = image.size
        flip = random.random() < 0.5
        target = max(1, int(side * random.uniform(0.1, 2.0)))
        scale = min(target / height, target / width)
        rows, columns = max(1, int(height * scale)), max(1, int(width * scale))
        shown = min(rows, side), min(columns, side)
        top, left = random.randint(0, rows - shown[0]), random.randint(0, columns - shown[1])
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        box = (left * width / columns, top * height / rows)
        box = box + (box[0] + shown[1] * width / columns, box[1] + shown[0] * height / rows)
        canvas = np.zeros((side, side, 3), np.uint8)
        if self.resize == "pillow":
            part = image.resize((shown[1], shown[0]), Image.Resampling.BILINEAR, box=box)
            canvas[: shown[0], : shown[1]] = np.asarray(part)
        else:
            extent = (shown[1], shown[0]), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR
            canvas[: shown[0], : shown[1]] = np.asarray(image.transform(*extent))
        boxes, classes = np.zeros((MOST, 4), np.float32), np.zeros(MOST, np.int32)
        kept = np.array([a["bbox"] for a in self.objects[entry["id"]]], np.float32).reshape(-1, 4)
        labels = np.array([a["category_id"] - 1 for a in self.objects[entry["id"]]], np.int32)
        kept[:, 2:] += kept[:, :2]
        if flip:
            kept[:, [0, 2]] = width - kept[:, [2, 0]]
        kept *= np.float32([columns / width, rows / height] * 2)
        kept = np.clip(kept - np.float32([left, top] * 2), 0, side - 1)
        area = (kept[:, 2] > kept[:, 0]) & (kept[:, 3] > kept[:, 1])
        kept, labels = kept[area][:MOST], labels[area][:MOST]
        boxes[: len(kept)], classes[: len(kept)] = kept, labels
        sizes = np.float32(shown)
        return canvas, sizes, boxes, classes, len(kept), entry["id"], np.float32(1 / scale)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("annotations", type=pathlib.Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--resize", choices=("two-tap", "pillow"), default="two-tap", help="pillow: antialiased")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Coco(options.images, options.annotations, options.size, options.resize)
    loader = DataLoader(
        data, options.batch_size, shuffle=True, drop_last=True, num_workers=options.workers, persistent_workers=True
    )
    start, images = None, 0
    while start is None or time.perf_counter() - start < options.seconds:
        for batch in loader:
            if start is None:
                start = time.perf_counter()
                continue
            images += len(batch[0])
            if time.perf_counter() - start >= options.seconds:
                break
    elapsed = time.perf_counter() - start
    print(f"{images / elapsed:.1f} images/s with {options.workers} workers, {images} images in {elapsed:.1f} s")


if __name__ == "__main__":
    main()
