"""Random sets of annotated images with detections, by seed."""

import math
import random

from pycocotools import mask as masks

# Areas at the limits of small, medium and large, and beside them.
LIMITS = [1024, 9216, 1024.0000001, 9215.9999999, 1023.5, 0]


def polygon(rng, x, y, width, height, points):
    """A star-shaped polygon that about fills a box."""
    turns = sorted(rng.random() for _ in range(points))
    numbers = []
    for turn in turns:
        reach = rng.uniform(0.5, 1.0)
        numbers.append(round(x + width / 2 * (1 + reach * math.cos(2 * math.pi * turn)), 2))
        numbers.append(round(y + height / 2 * (1 + reach * math.sin(2 * math.pi * turn)), 2))
    return numbers


def clipped(x, y, width, height, image):
    """Whole pixels of a box within an image, at least one."""
    left, top = min(max(int(x), 0), image["width"] - 1), min(max(int(y), 0), image["height"] - 1)
    right = min(max(int(x + width), left + 1), image["width"])
    bottom = min(max(int(y + height), top + 1), image["height"])
    return left, top, right, bottom


def uncompressed(rng, x, y, width, height, image):
    """Runs of a box with ragged ends."""
    left, top, right, bottom = clipped(x, y, width, height, image)
    counts, position = [], 0
    for column in range(left, right):
        first = column * image["height"] + min(top + rng.randrange(3), bottom - 1)
        last = (column + 1) * image["height"] - (image["height"] - bottom)
        if first > position or not counts:
            counts += [first - position, last - first]
        else:
            counts[-1] += last - first
        position = last
    counts.append(image["height"] * image["width"] - position)
    return {"size": [image["height"], image["width"]], "counts": counts}


def compressed(shape, image):
    """Any shape as compressed runs."""
    if isinstance(shape, dict) and isinstance(shape["counts"], str):
        return shape
    height, width = image["height"], image["width"]
    objects = masks.frPyObjects(shape, height, width)
    whole = masks.merge(objects) if isinstance(objects, list) else objects
    return {"size": [height, width], "counts": whole["counts"].decode()}


def shape(rng, box, image):
    """Polygons or runs in a box."""
    kind = rng.random()
    if kind < 0.6:
        return [polygon(rng, *box, rng.randint(3, 12))]
    if kind < 0.8:
        x, y, width, height = box
        return [polygon(rng, x, y, width / 2, height, 6), polygon(rng, x + width / 3, y, width / 2, height, 5)]
    runs = uncompressed(rng, *box, image)
    return runs if kind < 0.9 else compressed(runs, image)


def random_box(rng, image):
    size = rng.choice([8, 32, 60, 96, 150])
    width, height = (size, size) if rng.random() < 0.3 else (rng.uniform(1, size), rng.uniform(1, size))
    x, y = rng.uniform(-5, image["width"] - 5), rng.uniform(-5, image["height"] - 5)
    return [round(value, 2) for value in (x, y, width, height)]


def moved(rng, box, by):
    x, y, width, height = box
    shift = lambda: rng.gauss(0, by)
    return [round(v, 2) for v in (x + width * shift(), y + height * shift(), max(width * (1 + shift()), 0), max(height * (1 + shift()), 0))]


def score(rng, ties):
    return rng.choice([0.1, 0.3, 0.5, 0.5, 0.9, 1]) if ties else rng.random()


def small_set(seed):
    """A small set: (annotations, results). Some have no boxes in the results, many detections or tied scores."""
    rng = random.Random(seed)
    ids = rng.sample(range(1, 1000), rng.randint(2, 12))
    images = [{"id": i, "width": rng.randint(50, 260), "height": rng.randint(50, 260), "file_name": f"{i}.jpg"} for i in ids]
    categories = [{"id": i, "name": f"class {i}"} for i in rng.sample(range(1, 91), rng.randint(1, 5))]
    annotations, results = [], []
    first = 0 if seed % 10 == 9 else 1
    for image in images:
        if rng.random() < 0.2:
            continue  # an image without objects
        for _ in range(rng.randint(1, 8)):
            box = random_box(rng, image)
            is_crowd = rng.random() < 0.12
            runs = uncompressed(rng, *box, image)
            area = box[2] * box[3] if rng.random() < 0.7 else rng.choice(LIMITS)
            annotations.append({
                "id": first + len(annotations), "image_id": image["id"], "category_id": rng.choice(categories)["id"],
                "bbox": box, "area": area, "iscrowd": int(is_crowd),
                "segmentation": runs if is_crowd else shape(rng, box, image),
            })
    ties, boxes, shapes = seed % 3 == 0, seed % 4 != 3, seed % 4 != 2
    by_id = {image["id"]: image for image in images}

    def detect(image, category, box):
        result = {"image_id": image["id"], "category_id": category, "score": score(rng, ties)}
        if boxes:
            result["bbox"] = box
        if shapes:
            result["segmentation"] = compressed(shape(rng, box, image), image)
        results.append(result)

    for annotation in annotations:
        image = by_id[annotation["image_id"]]
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            category = annotation["category_id"] if rng.random() < 0.9 else rng.choice(categories)["id"]
            detect(image, category, moved(rng, annotation["bbox"], rng.choice([0, 0.02, 0.1, 0.3])))
    for _ in range(rng.randint(0, 10)):
        image = rng.choice(images)
        detect(image, rng.choice(categories)["id"], random_box(rng, image))
    if seed % 5 == 0:
        # More than a hundred detections of one category in an image.
        image, category = rng.choice(images), rng.choice(categories)["id"]
        for _ in range(rng.randint(101, 140)):
            detect(image, category, random_box(rng, image))
    if seed % 7 == 0:
        # A category that the annotations do not list.
        detect(images[0], 99, random_box(rng, images[0]))
    if not annotations:
        return small_set(seed + 1_000_003)
    if not results:
        detect(images[0], categories[0]["id"], random_box(rng, images[0]))
    rng.shuffle(results)
    return {"images": images, "categories": categories, "annotations": annotations}, results


def large_set(images, objects, detections, with_masks, seed=0):
    """A set of the size of val2017 with `detections` in each image; categories are as unevenly frequent as there."""
    rng = random.Random(seed)
    categories = [{"id": i, "name": f"class {i}"} for i in range(1, 81)]
    weights = [1 / i for i in range(1, 81)]
    pictures = [{"id": 7 * i + 1, "width": 640, "height": 480, "file_name": f"{i}.jpg"} for i in range(images)]
    annotations, results = [], []

    def box():
        side = math.exp(rng.uniform(math.log(8), math.log(300)))
        width, height = min(side * rng.uniform(0.6, 1.6), 630), min(side * rng.uniform(0.6, 1.6), 470)
        return [round(v, 2) for v in (rng.uniform(0, 640 - width), rng.uniform(0, 480 - height), width, height)]

    by_image = [[] for _ in pictures]
    for number in range(objects):
        place = number if number < images else rng.randrange(images)
        here, image = box(), pictures[place % images]
        is_crowd = number % 80 == 0
        points = polygon(rng, *here, rng.randint(8, 40))
        annotation = {
            "id": number + 1, "image_id": image["id"], "category_id": rng.choices(categories, weights)[0]["id"],
            "bbox": here, "area": here[2] * here[3] * 0.7, "iscrowd": int(is_crowd),
            "segmentation": uncompressed(rng, *here, image) if is_crowd else [points],
        }
        annotations.append(annotation)
        by_image[place % images].append(annotation)
    for image, here in zip(pictures, by_image):
        for number in range(detections):
            if number < 3 * len(here):
                truth = here[number % len(here)]
                category, where = truth["category_id"], moved(rng, truth["bbox"], 0.08)
            else:
                category, where = rng.choices(categories, weights)[0]["id"], box()
            result = {"image_id": image["id"], "category_id": category, "bbox": where, "score": round(rng.random(), 5)}
            if with_masks:
                result["segmentation"] = compressed([polygon(rng, *where, 24)], image)
            results.append(result)
    return {"images": pictures, "categories": categories, "annotations": annotations}, results
