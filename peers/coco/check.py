#!/usr/bin/env python3
"""Compares `bessemer score coco` with pycocotools and faster-coco-eval. See README.md."""

import argparse
import contextlib
import hashlib
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import generate
from pycocotools import mask as masks

NAMES = ["AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
         "AR_max1", "AR_max10", "AR_max100", "AR_small", "AR_medium", "AR_large"]
KINDS = ["bbox", "segm"]
TOLERANCE = 1e-9


def tool(name):
    """COCO and COCOeval of a package."""
    if name == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
        return COCO, COCOeval
    from faster_coco_eval import COCO, COCOeval_faster
    return COCO, COCOeval_faster


def score(name, data, results, kind):
    """Scores two files: the twelve numbers, those of each class by id, and seconds to load and to evaluate."""
    coco, evaluation = tool(name)
    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        truth = coco(str(data))
        found = truth.loadRes(str(results))
        loaded = time.perf_counter()
        run = evaluation(truth, found, kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
        end = time.perf_counter()
    return dict(zip(NAMES, map(float, run.stats[:12]))), by_class(run), (loaded - start, end - loaded)


def by_class(run):
    """The twelve numbers of each class from the arrays of precision and recall."""
    precision, recall = run.eval["precision"], run.eval["recall"]
    mean = lambda values: float(values[values > -1].mean()) if (values > -1).any() else -1.0
    scores = {}
    for index, category in enumerate(run.params.catIds):
        p, r = precision[:, :, index], recall[:, index]
        values = [p[..., 0, 2], p[0, :, 0, 2], p[5, :, 0, 2], p[..., 1, 2], p[..., 2, 2], p[..., 3, 2],
                  r[:, 0, 0], r[:, 0, 1], r[:, 0, 2], r[:, 1, 2], r[:, 2, 2], r[:, 3, 2]]
        scores[int(category)] = dict(zip(NAMES, map(mean, values)))
    return scores


def bessemer(program, data, results, kind, *more):
    command = [program, "score", "coco", "--data", data, "--predictions", results, "--kind", kind, "--quiet", *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(done.stdout)


def write(folder, data, results):
    paths = folder / "data.json", folder / "results.json"
    for path, content in zip(paths, (data, results)):
        path.write_text(json.dumps(content))
    return paths


def check_sets(arguments):
    largest, compared = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.sets):
            data, results = generate.small_set(seed)
            paths = write(pathlib.Path(folder), data, results)
            for kind in KINDS:
                scores, classes, _ = score("pycocotools", *paths, kind)
                ours = bessemer(arguments.program, *paths, kind, "--classes", "--json")
                pairs = [(scores, ours)] + [(classes[one["id"]], one) for one in ours["classes"]]
                assert len(classes) == len(ours["classes"])
                for theirs, one in pairs:
                    for name in NAMES:
                        difference = abs(theirs[name] - one[name])
                        if not difference <= TOLERANCE:
                            sys.exit(f"set {seed}, {kind}, {one.get('name', 'all')}: {name} is {one[name]}, "
                                     f"pycocotools has {theirs[name]}")
                        largest, compared = max(largest, difference), compared + 1
    print(f"{arguments.sets} sets, {compared} scores equal within {TOLERANCE}; the largest difference is {largest:.3g}")


def hash_masks(arguments):
    """The SHA-256 of the masks of all annotations of a file, compressed, each followed by a line end."""
    for path in arguments.files:
        data = json.loads(pathlib.Path(path).read_text())
        images = {image["id"]: image for image in data["images"]}
        digest = hashlib.sha256()
        for one in data["annotations"]:
            digest.update(generate.compressed(one["segmentation"], images[one["image_id"]])["counts"].encode() + b"\n")
        print(f"{digest.hexdigest()}  {len(data['annotations'])} masks of {path}")


def fixtures(arguments):
    folder = pathlib.Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, open(folder / "sets.jsonl", "w") as out:
        for seed in range(arguments.sets):
            data, results = generate.small_set(seed)
            paths = write(pathlib.Path(scratch), data, results)
            case = {"seed": seed, "data": data, "results": results}
            for kind in KINDS:
                scores, classes, _ = score("pycocotools", *paths, kind)
                case[kind] = {"all": list(scores.values()),
                              "classes": {i: list(one.values()) for i, one in classes.items()}}
            out.write(json.dumps(case, separators=(",", ":")) + "\n")
    rng = random.Random(1)
    with open(folder / "masks.jsonl", "w") as out:
        before = None
        for number in range(arguments.masks):
            if number % 2 == 0:
                image = {"width": rng.randint(1, 90), "height": rng.randint(1, 90)}
            shapes = [odd_polygon(rng, image) for _ in range(rng.choice([1, 1, 2, 3]))]
            runs = generate.compressed(shapes, image)
            case = {**runs, "polygons": shapes, "area": int(masks.area(runs)), "bbox": masks.toBbox(runs).tolist()}
            if number % 2 == 1:
                case["union"] = masks.merge([before, runs])["counts"].decode()
                case["intersection"] = masks.merge([before, runs], intersect=True)["counts"].decode()
                case["iou"] = float(masks.iou([runs], [before], [0])[0, 0])
                case["crowd_iou"] = float(masks.iou([runs], [before], [1])[0, 0])
            before = runs
            out.write(json.dumps(case, separators=(",", ":")) + "\n")


def odd_polygon(rng, image):
    """Polygons of all kinds: within the image and beyond, in whole pixels, crossing themselves, without area."""
    kind = rng.randrange(6)
    width, height = image["width"], image["height"]
    if kind == 0:
        return generate.polygon(rng, *generate.random_box(rng, image), rng.randint(3, 12))
    if kind == 1:
        return [rng.randint(0, max(width, height)) for _ in range(2 * rng.randint(3, 8))]
    if kind == 2:
        return [rng.uniform(-100, 200) for _ in range(2 * rng.randint(3, 8))]
    if kind == 3:
        return [round(rng.uniform(-3, height + 3) * 5) / 10 for _ in range(2 * rng.randint(3, 8))]
    if kind == 4:
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        return rng.choice([[x, y] * 3, [x, y, x, y, x + 9, y, x + 9, y + 4.5], [x, y, x + 10, y, x + 5, y]])
    return [0, 0, width, 0, width, height, 0, height]


def speed(arguments):
    for kind, detections in zip(KINDS, arguments.detections):
        if kind not in arguments.kinds:
            continue
        folder = pathlib.Path(arguments.folder) / kind
        paths = folder / "data.json", folder / "results.json"
        if not all(path.exists() for path in paths):
            folder.mkdir(parents=True, exist_ok=True)
            write(folder, *generate.large_set(arguments.images, arguments.objects, detections, kind == "segm"))
        if arguments.prepare:
            continue
        size = sum(path.stat().st_size for path in paths) / 1e6
        seconds = []
        for _ in range(arguments.repeat):
            start = time.perf_counter()
            ours = bessemer(arguments.program, *paths, kind, "--json")
            seconds.append(time.perf_counter() - start)
        best = min(seconds)
        print(f"{kind}: {ours['images']} images, {ours['objects']} objects, {ours['detections']} detections, {size:.0f} MB of JSON")
        print(f"  bessemer: {best:.2f} s for the whole command (the fastest of {arguments.repeat})", flush=True)
        for name in arguments.tools:
            command = [sys.executable, __file__, "one", name, *map(str, paths), kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            scores, load, evaluate = json.loads(done.stdout)
            worst = max(abs(scores[score] - ours[score]) for score in NAMES)
            print(f"  {name}: {load:.2f} s to load, {evaluate:.2f} s to evaluate; {(load + evaluate) / best:.1f} times as long, "
                  f"{evaluate / best:.1f} times without loading; scores differ by {worst:.1g}", flush=True)


def one(arguments):
    scores, _, (load, evaluate) = score(arguments.name, arguments.data, arguments.results, arguments.kind)
    print(json.dumps([scores, load, evaluate]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    sets = commands.add_parser("sets", help="random sets, scored by both")
    sets.add_argument("program")
    sets.add_argument("--sets", type=int, default=200)
    sets.set_defaults(run=check_sets)
    hashes = commands.add_parser("masks", help="hashes of the masks of files of annotations, which the tests of crates/data compare")
    hashes.add_argument("files", nargs="+")
    hashes.set_defaults(run=hash_masks)
    made = commands.add_parser("fixtures", help="writes the fixtures of crates/data/tests/fixtures/coco")
    made.add_argument("folder")
    made.add_argument("--sets", type=int, default=12)
    made.add_argument("--masks", type=int, default=160)
    made.set_defaults(run=fixtures)
    timed = commands.add_parser("speed", help="a large set, timed")
    timed.add_argument("program")
    timed.add_argument("--folder", required=True, help="where the sets are written, or read if they are there")
    timed.add_argument("--prepare", action="store_true", help="write the sets and time nothing")
    timed.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    timed.add_argument("--tools", nargs="+", default=["pycocotools", "faster-coco-eval"])
    timed.add_argument("--images", type=int, default=5000)
    timed.add_argument("--objects", type=int, default=36000)
    timed.add_argument("--detections", type=int, nargs=2, default=[100, 20], help="in each image, for bbox and segm")
    timed.add_argument("--repeat", type=int, default=3)
    timed.set_defaults(run=speed)
    single = commands.add_parser("one", help="times one tool on two files")
    for name in ("name", "data", "results", "kind"):
        single.add_argument(name)
    single.set_defaults(run=one)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
