"""Writes crates/models/tests/fixtures/recipes: what NVIDIA's TensorFlow recipes of Mask R-CNN and EfficientDet compute, in NumPy.

    python peers/tensorflow/make_recipe_fixtures.py

The recipes' definitions are written down here in float64, without TensorFlow: boxes are `[y1, x1, y2, x2]` inside of this script and
`[x1, y1, x2, y2]` in the fixtures. Most inputs are drawn by `drawn`, which the tests have as well, so that they need not be stored.
No decision (a threshold, an order) lies so close that float32 could take it otherwise; the script checks that.
"""

import json
from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).resolve().parents[2] / "crates/models/tests/fixtures/recipes"
# Of longer results the fixtures have every n-th element, with the least odd n that leaves so many.
MOST_WRITTEN = 500
MARGIN = 1e-5


def hashed(seed, count):
    """A hash of 32 bits of each of `count` positions."""
    mask = np.uint64(0xFFFFFFFF)
    h = (np.arange(count, dtype=np.uint64) + np.uint64(seed * 0x9E3779B9)) & mask
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        h ^= h >> np.uint64(shift)
        h = (h * np.uint64(factor)) & mask
    return h ^ (h >> np.uint64(16))


def drawn(seed, shape, scale=1.0):
    """Numbers from `-scale` to `scale`, which are exact in float32 if the scale is a power of two."""
    return (((hashed(seed, int(np.prod(shape))) >> np.uint64(8)) / 2.0**23 - 1) * scale).reshape(shape)


def drawn_bytes(seed, shape):
    return (hashed(seed, int(np.prod(shape))) >> np.uint64(24)).astype(np.uint8).reshape(shape)


def written(x):
    x = np.asarray(x, np.float64).ravel()
    x = x[:: -(-len(x) // MOST_WRITTEN) | 1]
    short = [float(f"{v:.10g}") for v in x]
    return [int(v) if v == int(v) else v for v in short]


def write(name, content):
    text = json.dumps({part: {key: written(x) for key, x in values.items()} for part, values in content.items()})
    (OUTPUT / f"{name}.json").write_text(text.replace("}, ", "},\n").replace('": {', '": {\n') + "\n")


def swapped(boxes):
    """Between the orders of coordinates."""
    return np.asarray(boxes, np.float64)[..., [1, 0, 3, 2]]


def apart(x, threshold):
    """Asserts that no number is close to a threshold, other than being equal to it."""
    distance = np.abs(np.asarray(x, np.float64) - threshold)
    assert not ((distance > 0) & (distance < MARGIN)).any()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def binary_entropy(x, z):
    return np.maximum(x, 0) - x * z + np.log1p(np.exp(-np.abs(x)))


def huber(error, delta):
    size = np.abs(error)
    return np.where(size <= delta, error**2 / 2, delta * size - delta**2 / 2)


# Both networks.


def grid_anchors(canvas, levels, scale, octaves):
    """Anchors of each level, by row, column, octave and aspect."""
    result = []
    for level in levels:
        stride = 2**level
        centres_y, centres_x = (np.arange(stride / 2, side, stride) for side in canvas)
        boxes = []
        for y in centres_y:
            for x in centres_x:
                for octave in range(octaves):
                    side = scale * stride * 2 ** (octave / octaves)
                    for across, down in ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)):
                        half_y, half_x = side * down / 2, side * across / 2
                        boxes.append([y - half_y, x - half_x, y + half_y, x + half_x])
        result.append(np.array(boxes))
    return result


def areas(boxes):
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def overlaps(a, b, eps=0.0):
    """IoU `[len(a), len(b)]`, and 0 where nothing overlaps."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    union = areas(a)[:, None] + areas(b)[None] - both + eps
    return np.where(both > 0, both / np.where(both > 0, union, 1), 0)


def matched_anchors(anchors, truths, low, high):
    """The ground truth of each anchor, -1 for background, -2 for neither."""
    if len(truths) == 0:
        return np.full(len(anchors), -1)
    iou = overlaps(truths, anchors)
    best = iou.max(0)
    apart(best, low), apart(best, high)
    match = np.where(best < low, -1, np.where(best < high, -2, iou.argmax(0)))
    # Each ground truth has its best anchor; of several that want one, the first has it.
    for number in reversed(range(len(truths))):
        row = iou[number]
        assert (np.sort(row)[-1] - np.sort(row)[-2]) > MARGIN or row.max() == 0
        match[row.argmax()] = number
    return match


def plain_codes(anchors, truths, match, eps_of_side):
    codes = np.zeros((len(anchors), 4))
    for n in np.flatnonzero(match >= 0):
        (y1, x1, y2, x2), (v1, u1, v2, u2) = anchors[n], truths[match[n]]
        h, w, p, q = (eps_of_side(side) for side in (y2 - y1, x2 - x1, v2 - v1, u2 - u1))
        centre = [((v1 + v2) - (y1 + y2)) / 2 / h, ((u1 + u2) - (x1 + x2)) / 2 / w]
        codes[n] = centre + [np.log(p / h), np.log(q / w)]
    return codes


# Mask R-CNN.

CANVAS = (64, 128)
SIZES = [(64, 128), (50, 100), (64, 90)]
BATCH = 3
# Boxes are x first, as in the fixtures. Both objects of the last image want one anchor, and have its sides exactly, so that these
# coordinates are 0 and count nowhere.
OBJECTS = [
    [[10, 6, 41, 39.5], [70, 20, 101, 49.5], [9.5, 38.5, 51.5, 54]],
    [],
    [[19, 7, 51, 39], [19, 7, 51, 39]],
]
TAKEN = 40


def pixel_sides(boxes):
    low, high = boxes[..., :2], boxes[..., 2:]
    sides = high - low + 1
    return low + sides / 2, sides


def decoded(codes, reference, size, weights=(1, 1, 1, 1)):
    """Boxes of codes, where sides count pixels, cut off at the last pixel of the image."""
    codes = codes / np.array(weights, np.float64)
    centre, sides = pixel_sides(reference)
    new = np.exp(np.minimum(codes[..., 2:], np.log(1000 / 16))) * sides
    low = codes[..., :2] * sides + centre - new / 2
    boxes = np.concatenate([low, low + new - 1], -1)
    last = np.array([size[0] - 1, size[1] - 1] * 2, np.float64)
    return np.maximum(np.minimum(boxes, last), 0)


def encoded(boxes, reference, weights):
    (centre, sides), (own_centre, own_sides) = pixel_sides(boxes), pixel_sides(reference)
    return np.concatenate([(centre - own_centre) / own_sides, np.log(sides / own_sides)], -1) * weights


def suppressed(boxes, scores, most, iou):
    """Rows that are kept, best first: TensorFlow's combined suppression of one class, of scores above 0."""
    kept = []
    for row in np.argsort(-scores, kind="stable"):
        if len(kept) == most or scores[row] <= 0:
            break
        shares = overlaps(boxes[row][None], boxes[kept])[0] if kept else np.zeros(0)
        apart(shares, iou)
        if not (shares > iou).any():
            kept.append(row)
    return kept


def rpn_inputs():
    anchors = grid_anchors(CANVAS, range(2, 7), 8.0, 1)
    logits = [drawn(10 + level, (BATCH, len(own)), 4.0) for level, own in enumerate(anchors)]
    deltas = []
    for level, own in enumerate(anchors):
        flat = drawn(20 + level, (BATCH * len(own) * 4,))
        flat[::97] *= 8
        deltas.append(flat.reshape(BATCH, len(own), 4))
    return anchors, logits, deltas


def rpn_losses():
    anchors, logits, deltas = rpn_inputs()
    joined, total = np.concatenate(anchors), 4096
    score_loss, box_loss, score_grads, box_grads, labels, codes = 0.0, 0.0, [], [], [], []
    for objects in OBJECTS:
        truths = swapped(np.reshape(objects, (-1, 4)))
        match = matched_anchors(joined, truths, 0.3, 0.7)
        # All fit into the sample.
        labels.append(np.where(match >= 0, 1, np.where(match == -1, 0, -1)))
        codes.append(plain_codes(joined, truths, match, lambda side: side + 1e-8))
    labels, codes, start = np.stack(labels), np.stack(codes), 0
    assert {-1, 0, 1} == set(labels.ravel()) and ((codes == 0).any(2) & (labels == 1)).any()
    for level, own in enumerate(anchors):
        part = slice(start, start + len(own))
        start += len(own)
        z, x, t, d = labels[:, part], logits[level], codes[:, part], deltas[level]
        is_sampled, counts = z >= 0, t != 0
        score_loss += (binary_entropy(x, np.maximum(z, 0)) * is_sampled).sum() / (BATCH * total)
        score_grads.append((sigmoid(x) - np.maximum(z, 0)) * is_sampled / (BATCH * total))
        number = counts.sum()
        box_loss += (huber(d - t, 1 / 9) * counts).sum() / max(number, 1)
        box_grads.append(np.clip(d - t, -1 / 9, 1 / 9) * counts / max(number, 1))
    flat = lambda parts: np.concatenate([part.ravel() for part in parts])
    return {
        "anchors": swapped(joined),
        "score_loss": score_loss,
        "box_loss": box_loss,
        "score_gradients": flat(score_grads),
        # Those of anchors with an object, of which there are few.
        "box_gradients": flat(box_grads)[flat(box_grads) != 0],
    }


def proposals():
    anchors, logits, deltas = rpn_inputs()
    boxes = np.zeros((BATCH, TAKEN, 4))
    for image, size in enumerate(SIZES):
        found, best = [], []
        for own, x, d in zip(anchors, logits, deltas):
            own_boxes, scores = decoded(d[image], own, size), sigmoid(x[image])
            normal = own_boxes / np.array(size * 2, np.float64)
            kept = suppressed(normal, scores, min(TAKEN, len(own)), 0.7)
            found.append(own_boxes[kept]), best.append(scores[kept])
        found, best = np.concatenate(found), np.concatenate(best)
        order = np.argsort(-best, kind="stable")[:TAKEN]
        boxes[image] = found[order]
    # Some have no area, as their anchors lie beyond the image.
    assert (areas(boxes) <= 0).any()
    return {"boxes": swapped(boxes)}


CANDIDATES = 12
ROWS = 15
CLASSES = 4
CROP = 14
REGION_SIZES = [(64, 128)] * BATCH
# Objects and their classes; two images have fewer than the most.
REGION_OBJECTS = [
    ([[10, 6, 42, 40], [60, 10, 120, 60], [30, 30, 50, 44]], [1, 3, 2]),
    ([[5, 5, 40, 30], [50, 8, 110, 56]], [2, 2]),
    ([], []),
]


def region_proposals():
    """Proposals around the objects, some further away than others; the fourth has no area."""
    boxes = np.zeros((BATCH, CANDIDATES, 4))
    for image, (objects, _) in enumerate(REGION_OBJECTS):
        for row in range(CANDIDATES):
            base = objects[row % len(objects)] if objects else [8 * row, 4, 8 * row + 20, 40]
            moved = np.array(base) + np.round(drawn(100 + image * CANDIDATES + row, (4,)) * (2 + 2 * row))
            corners = np.sort(np.clip(moved, 0, [127, 63, 127, 63]).reshape(2, 2), 0)
            boxes[image, row] = corners.ravel()
        boxes[image, 3] = [40, 10, 40, 30]
    return swapped(boxes)


def chosen_regions():
    """Match, boxes, classes and numbers of the objects of all regions of each image: those with an object come first, as the order
    means nothing, and padding last."""
    result = []
    for own, (objects, classes) in zip(region_proposals(), REGION_OBJECTS):
        truths = swapped(np.reshape(objects, (-1, 4)))
        boxes = np.concatenate([own, truths])
        if len(truths):
            iou = overlaps(boxes, truths, 1e-8)
            best, number = iou.max(1), iou.argmax(1)
        else:
            best, number = np.zeros(len(boxes)), np.zeros(len(boxes), int)
        apart(best, 0.5)
        match = np.where(best > 0.5, number, np.where(best < 0.5, -1, -2))
        assert (match != -2).all()
        rows = np.argsort(match < 0, kind="stable")
        padding = ROWS - len(boxes)
        match_of_row = np.concatenate([match[rows], np.full(padding, -1)])
        labels = np.array([classes[m] if m >= 0 else 0 for m in match_of_row])
        boxes = np.concatenate([boxes[rows], np.zeros((padding, 4))])
        targets = np.array([truths[m] if m >= 0 else np.zeros(4) for m in match_of_row])
        result.append((np.concatenate([match, np.full(padding, -2)]), boxes, labels, match_of_row, targets))
    return [np.stack(part) for part in zip(*result)]


def crop_and_resize(crop, start, size, count):
    """`count x count` samples of a crop `[M, M]`, from `start` on over `size` pixels of it, at the centres of equal parts."""
    taps = []
    for axis in range(2):
        at = start[axis] + (np.arange(count) + 0.5) * size[axis] / count
        low = np.maximum(np.floor(at), 0)
        pixels = np.minimum(np.stack([low, low + 1]), crop.shape[axis] - 1).astype(int)
        taps.append((pixels, np.stack([1 - (at - low), at - low])))
    (rows, down), (columns, across) = taps
    result = 0
    for i in range(2):
        for j in range(2):
            weight = down[i][:, None] * across[j][None]
            result = result + weight.reshape(weight.shape + (1,) * (crop.ndim - 2)) * crop[rows[i]][:, columns[j]]
    return result


def regions():
    match, boxes, labels, numbers, targets = chosen_regions()
    is_object = labels > 0
    assert is_object[:2].sum(1).min() > 2 and not is_object[2].any()
    logits = drawn(30, (BATCH, ROWS, CLASSES), 2.0)
    deltas = drawn(31, (BATCH, ROWS, CLASSES, 4), 2.0)
    shifted = logits - logits.max(-1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    hits = np.eye(CLASSES)[labels]
    class_loss = -(np.log(shares) * hits).sum() / (BATCH * ROWS)

    codes = np.where(is_object[..., None], encoded(targets, boxes, (10, 10, 5, 5)), 0)
    own = np.take_along_axis(deltas, labels[..., None, None], 2)[:, :, 0]
    counted = 4 * is_object.sum()
    box_loss = (huber(own - codes, 1.0) * is_object[..., None]).sum() / counted
    box_grads = np.zeros_like(deltas)
    slopes = np.clip(own - codes, -1, 1) * is_object[..., None] / counted
    np.put_along_axis(box_grads, labels[..., None, None], slopes[:, :, None], 2)

    crops = drawn_bytes(35, (BATCH, max(len(o) for o, _ in REGION_OBJECTS), CROP, CROP))
    masks, most = [], 8
    mask_logits = drawn(33, (BATCH * most, 28, 28), 2.0)
    for image, row in zip(*np.nonzero(is_object)):
        crop = np.pad(crops[image, numbers[image, row]] / 255, 2)
        box, truth = boxes[image, row], targets[image, row]
        scale = CROP / (truth[2:] - truth[:2] + 1e-8)
        shares_of_mask = crop_and_resize(crop, (box[:2] - truth[:2]) * scale + 2, (box[2:] - box[:2]) * scale, 28)
        apart(shares_of_mask, 0.5)
        masks.append(shares_of_mask >= 0.5)
    assert is_object.sum(1).max() <= most
    masks = np.array(masks, np.float64)
    of_objects = mask_logits[: len(masks)]
    return {
        "proposals": swapped(region_proposals()),
        "match": match,
        "boxes": swapped(boxes),
        "labels": labels,
        "numbers": numbers,
        "class_loss": class_loss,
        "box_loss": box_loss,
        "class_gradients": (shares - hits) / (BATCH * ROWS),
        "box_gradients": box_grads[box_grads != 0],
        "masks": len(masks),
        "mask_loss": binary_entropy(of_objects, masks).sum() / masks.size,
        "mask_gradients": ((sigmoid(of_objects) - masks) / masks.size).ravel(),
    }


# Of all levels, at their limits, without area, before the first pixel and beyond the last; x first.
ALIGNED = [
    [4, 4, 40, 36], [0, 0, 112, 112], [10, 5, 122, 116.5], [0, 0, 224, 224], [-30, -20, 330, 300], [-60, 0, 420, 470], [0, 0, 448, 448],
    [-200, -100, 760, 860], [20, 20, 20, 40], [-9, -7, 6, 9], [110, 50, 140, 70], [3.5, 2.25, 90, 60],
]


def pyramid_maps():
    return [drawn(40 + level, (2, CANVAS[0] >> level, CANVAS[1] >> level, 3)) for level in range(2, 7)]


def aligned():
    maps, result = pyramid_maps(), {7: [], 14: []}
    for number, (x1, y1, x2, y2) in enumerate(ALIGNED):
        area = (x2 - x1) * (y2 - y1)
        level = 2 if area == 0 else int(np.clip(np.floor(np.log(np.sqrt(area) / 224) / np.log(2)) + 4, 2, 6))
        own = maps[level - 2][number % 2]
        start, size = np.array([y1, x1]) / 2**level, np.array([y2 - y1, x2 - x1]) / 2**level
        for count in result:
            result[count].append(crop_and_resize(own, start, size, count))
    return {"features_7": result[7], "features_14": result[14]}


def detections():
    """Of each class the boxes that do not overlap a better one, and the best of all classes."""
    most, reference = 20, region_proposals()
    logits = drawn(50, (BATCH, CANDIDATES, CLASSES), 2.0)
    deltas = drawn(51, (BATCH, CANDIDATES, CLASSES, 4), 4.0)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    boxes, scores, labels = np.zeros((BATCH, most, 4)), np.zeros((BATCH, most)), np.zeros((BATCH, most))
    for image, size in enumerate(SIZES):
        found = []
        for label in range(1, CLASSES):
            own = decoded(deltas[image, :, label], reference[image], size, (10, 10, 5, 5))
            kept = suppressed(own / np.array(size * 2, np.float64), shares[image, :, label], CANDIDATES, 0.5)
            found += [(shares[image, row, label], label, own[row]) for row in kept]
        found.sort(key=lambda entry: -entry[0])
        assert len(found) > most
        for place, (score, label, box) in enumerate(found[:most]):
            boxes[image, place], scores[image, place], labels[image, place] = box, score, label
    return {"boxes": swapped(boxes), "scores": scores, "labels": labels}


# EfficientDet.

DET_CANVAS = (128, 256)
DET_CLASSES = 3
DET_OBJECTS = [
    ([[10, 6, 41, 39.5], [70, 20, 201, 100], [16.5, 79.5, 56.5, 89.5]], [0, 2, 1]),
    ([], []),
    ([[21, 5, 53, 37], [21, 5, 53, 37]], [1, 2]),
]


def det_losses():
    anchors = grid_anchors(DET_CANVAS, range(3, 8), 4.0, 3)
    joined, alpha, gamma, delta = np.concatenate(anchors), 0.25, 1.5, 0.1
    classes, codes, positives = [], [], []
    for objects, own in DET_OBJECTS:
        truths = swapped(np.reshape(objects, (-1, 4)))
        match = matched_anchors(joined, truths, 0.5, 0.5)
        classes.append([own[m] if m >= 0 else -1 for m in match])
        codes.append(plain_codes(joined, truths, match, lambda side: max(side, 1e-8)))
        positives.append((match != -1).sum())
    classes, codes, divisor = np.array(classes), np.stack(codes), sum(positives) + 1.0
    assert ((codes == 0).any(2) & (classes >= 0)).any()
    class_loss, box_loss, class_grads, box_grads, start = 0.0, 0.0, [], [], 0
    for level, own in enumerate(anchors):
        part = slice(start, start + len(own))
        start += len(own)
        x = drawn(60 + level, (BATCH, len(own), DET_CLASSES), 4.0)
        z = (classes[:, part, None] == np.arange(DET_CLASSES)).astype(np.float64)
        modulator = np.exp(-gamma * z * x - gamma * np.log1p(np.exp(-x)))
        weight = np.where(z == 1, alpha, 1 - alpha)
        entropy = binary_entropy(x, z)
        class_loss += (weight * modulator * entropy).sum() / divisor
        slope = modulator * (-gamma * z + gamma * sigmoid(-x)) * entropy + modulator * (sigmoid(x) - z)
        class_grads.append((weight * slope / divisor).ravel())
        d, t = drawn(70 + level, (BATCH, len(own), 4), 0.5), codes[:, part]
        counts = t != 0
        box_loss += (huber(d - t, delta) * counts).sum() / (4 * divisor)
        box_grads.append((np.clip(d - t, -delta, delta) * counts / (4 * divisor)).ravel())
    box_grads = np.concatenate(box_grads)
    return {
        "anchors": swapped(joined),
        "positives": positives,
        "class_loss": class_loss,
        "box_loss": box_loss,
        "class_gradients": np.concatenate(class_grads),
        "box_gradients": box_grads[box_grads != 0],
    }


def pooled(x):
    """The maximum of 3x3 pixels at every second one: nothing is padded before the first pixel, and one behind the last."""
    rows, columns = x.shape[1:3]
    x = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    parts = [x[:, i : i + rows : 2, j : j + columns : 2] for i in range(3) for j in range(3)]
    return np.max(parts, 0)[:, : rows // 2, : columns // 2]


def fused():
    """A node of three inputs of its level, of its level and of the finer one, and a node of its level and the coarser one; one weight
    is negative."""
    fine, own, other, coarse = (drawn(80 + n, (2, *size, 4)) for n, size in enumerate([(8, 12), (4, 6), (4, 6), (2, 3)]))
    mean = lambda maps, weights: sum(m * w for m, w in zip(maps, weights)) / (sum(weights) + 1e-4)
    return {
        "down": mean([own, other, pooled(fine)], (0.75, -0.5, 1.25)),
        "up": mean([own, np.repeat(np.repeat(coarse, 2, 1), 2, 2)], (-0.25, 1.5)),
    }


def normalised():
    """Pixels that are normalised, put into an empty canvas and normalised again."""
    images = drawn_bytes(90, (2, 6, 8, 3)) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    result = np.zeros_like(images)
    for image, (rows, columns) in enumerate([(6, 8), (4, 5)]):
        result[image, :rows, :columns] = ((images[image] - mean) / std)[:rows, :columns]
    return {"pixels": (result - mean) / std}


if __name__ == "__main__":
    parts = [rpn_losses, proposals, regions, aligned, detections]
    write("maskrcnn", {part.__name__: part() for part in parts})
    write("efficientdet", {part.__name__: part() for part in [det_losses, fused, normalised]})
