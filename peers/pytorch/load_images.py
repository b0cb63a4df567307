#!/usr/bin/env python3
"""Images per second of a PyTorch DataLoader beside `bessemer bench data`, in turn, on the same photos, one worker each.

    python load_images.py DATA --program bessemer --rounds 3

DATA is a folder with train/CLASS/*.jpg. Both read and decode a file (Pillow here), cut a random part out of it (torchvision's
RandomResizedCrop, v2), scale it to 224 x 224 with antialiasing, mirror it with probability 1/2, and collate batches of 64 in
8 bits. Needs torch and torchvision.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

BATCH = 64


def peer(data, seconds):
    """Images per second of a DataLoader with one worker, from the second batch on."""
    torch.set_num_threads(1)
    transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(f"{data}/train", transform)
    loader = DataLoader(images, BATCH, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    start, count = None, 0
    while True:
        for pixels, _ in loader:
            if start is None:
                start = time.perf_counter()
                continue
            count += len(pixels)
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return count / elapsed


def own(program, data, seconds):
    """Images per second of Bessemer's loader with one worker, and the milliseconds of each stage."""
    options = ["--workers", "1", "--seconds", str(seconds), "--no-step", "--json", "--quiet"]
    command = [program, "bench", "data", "resnet50", "--data", data, "--set", f"train.batch_size={BATCH}", *options]
    loading = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["loading"]
    return loading["samples_per_second"], loading["stage_ms_per_sample"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--program", default="bessemer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="for each measurement")
    options = parser.parse_args()
    rates, stages = {"Bessemer": [], "PyTorch": []}, []
    for _ in range(options.rounds):
        rate, stages = own(options.program, options.data, options.seconds)
        rates["Bessemer"].append(rate)
        rates["PyTorch"].append(peer(options.data, options.seconds))
    for name, seen in rates.items():
        print(f"{name:<9} {statistics.median(seen):7.1f} images/s of a worker ({min(seen):.1f} to {max(seen):.1f})")
    print(f"ratio     {statistics.median(rates['Bessemer']) / statistics.median(rates['PyTorch']):7.2f}")
    print("stages    " + ", ".join(f"{stage} {ms:.2f} ms" for stage, ms in stages))


if __name__ == "__main__":
    main()
