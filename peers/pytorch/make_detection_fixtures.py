"""Writes the detection fixture of crates/testkit: what torchvision and effdet compute in float64 from stored float32 inputs.

    python make_detection_fixtures.py        writes crates/testkit/fixtures/detection.json

Matches, codes and suppressions, each for no box, one and many, for equal scores and overlaps, for boxes that touch and boxes
without area; samples, proposals, features of regions and their gradients. The soft suppression of the reference recipe of
EfficientDet, which counts pixels, and the mask targets of that of Mask R-CNN are written here in NumPy.

Needs torch, torchvision and effdet (0.4).
"""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from effdet.anchors import AnchorLabeler, Anchors, generate_detections
from effdet.object_detection import BoxList
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import MultiScaleRoIAlign, batched_nms, box_iou, clip_boxes_to_image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer.mask_crops import BORDER, mask_shares

OUTPUT = Path(__file__).resolve().parents[2] / "crates" / "testkit" / "fixtures" / "detection.json"
RANDOM = np.random.RandomState(5)
CASES = []


@contextlib.contextmanager
def in_double():
    """Lets what asks for float32 get float64."""
    to_float, single = torch.Tensor.float, torch.float32
    torch.Tensor.float, torch.float32 = torch.Tensor.double, torch.float64
    try:
        yield
    finally:
        torch.Tensor.float, torch.float32 = to_float, single


def rounded(x, parts=8):
    """Multiples of `1 / parts`, which are exact in float32 and short in print."""
    return np.round(np.asarray(x, np.float64) * parts) / parts


def tensor(x):
    x = np.asarray(x)
    if x.dtype == np.uint8:
        return {"dtype": "u8", "shape": list(x.shape), "data": x.ravel().tolist()}
    if x.dtype.kind in "iub":
        return {"dtype": "i32", "shape": list(x.shape), "data": x.astype(int).ravel().tolist()}
    short = [float(f"{v:.13g}") for v in x.astype(np.float64).ravel()]
    data = [int(v) if v == int(v) else v for v in short]
    return {"dtype": "f32", "shape": list(x.shape), "data": data}


def case(name, op, inputs, outputs, **attributes):
    described = {"name": name, "op": op, **attributes}
    CASES.append({**described, "inputs": [tensor(x) for x in inputs], "outputs": [tensor(x) for x in outputs]})


def boxes(count, canvas, smallest=2.0, largest=40.0):
    low = RANDOM.uniform(0, canvas - smallest, (count, 2))
    return rounded(np.concatenate([low, np.minimum(low + RANDOM.uniform(smallest, largest, (count, 2)), canvas)], 1))


def padded(rows, capacity):
    rows = np.asarray(rows, np.float64).reshape(-1, 4)
    return np.concatenate([rows, np.zeros((capacity - len(rows), 4))])


def yx(rows):
    return rows[..., [1, 0, 3, 2]]


def anchors():
    with in_double():
        return Anchors(3, 7, 3, [(1.0, 1.0), (1.4, 0.7), (0.7, 1.4)], 4.0, (64, 64))


def anchor_case():
    levels = []
    for level in range(3, 8):
        grid = max(64 // 2**level, 1)
        stride = 64 / grid
        size = lambda octave, aspect: 4.0 * stride * 2 ** (octave / 3) * aspect / 2
        aspects = [(1.0, 1.0), (1.4, 0.7), (0.7, 1.4)]
        halves = [(size(o, x), size(o, y)) for o in range(3) for x, y in aspects]
        cells = [[-x, -y, x, y] for x, y in halves]
        levels.append({"grid": [grid, grid], "stride": stride, "boxes": cells})
    case("effdet's anchors", "anchors", [], [yx(anchors().boxes.numpy())], levels=levels)


TRUTHS = {
    "no ground truth": np.zeros((0, 4)),
    "one ground truth": boxes(1, 64),
    "100 ground truths": boxes(100, 64),
    "equal ground truths": rounded([[8, 8, 40, 40], [8, 8, 40, 40], [0, 0, 24, 24], [8, 8, 40, 40]]),
    "touching and empty ground truths": rounded([[64, 0, 90, 20], [10, 10, 10, 30], [12, 12, 12, 12], [20, 20, 50, 45]]),
}


def effdet_match_cases():
    grid = anchors()
    grid.boxes = torch.from_numpy(rounded(grid.boxes.numpy())[::2])
    assigner = AnchorLabeler(grid, 90).target_assigner
    for name, truths in TRUTHS.items():
        labels = torch.ones(len(truths))
        with in_double():
            _, codes, match = assigner.assign(BoxList(grid.boxes), BoxList(torch.from_numpy(yx(truths))), labels)
        match = match.match_results.numpy()
        capacity = max(len(truths), 5)
        inputs = [yx(grid.boxes.numpy()), padded(truths, capacity)[None], np.array([len(truths)])]
        outputs = [match[None], np.array([(match >= 0).sum()]), codes.numpy()[None]]
        case(f"effdet's targets, {name}", "targets", inputs, outputs, low=0.5, high=0.5, forced="best_once", order="yx",
             weights=[1, 1, 1, 1], eps=1e-7)


def torchvision_match_cases():
    coder = BoxCoder((10.0, 12.0, 5.0, 6.0))
    matcher = Matcher(0.6, 0.3, allow_low_quality_matches=True)
    squares = np.array([[x, y, x + 8, y + 8] for y in range(0, 56, 4) for x in range(0, 56, 4)], np.float64)
    for name in ["one ground truth", "100 ground truths", "equal ground truths"]:
        truths = TRUTHS[name] if "100" not in name else np.floor(TRUTHS[name] / 2) * 2 + [0, 0, 4, 4]
        # torchvision forces every square onto a truth that overlaps none.
        overlaps = box_iou(torch.from_numpy(truths), torch.from_numpy(squares)).numpy()
        truths, overlaps = truths[overlaps.max(1) > 0], overlaps[overlaps.max(1) > 0]
        match = matcher(torch.from_numpy(overlaps)).numpy()
        target = coder.encode_single(torch.from_numpy(truths[np.maximum(match, 0)]), torch.from_numpy(squares)).numpy()
        codes = np.where(match[:, None] >= 0, target, 0.0)
        inputs = [squares, padded(truths, len(truths) + 2)[None], np.array([len(truths)])]
        outputs = [match[None], np.array([(match >= 0).sum()]), codes[None]]
        case(f"torchvision's targets, {name}", "targets", inputs, outputs, low=0.3, high=0.6, forced="all_ties",
             order="xy", weights=[10, 12, 5, 6], eps=0)


def decode_case():
    coder, columns = BoxCoder((10.0, 12.0, 5.0, 6.0)), 3
    reference, codes = boxes(20, 64), rounded(RANDOM.normal(0, 4, (20, columns * 4)), 256)
    codes[0, 2] = 100.0
    decoded = coder.decode_single(torch.from_numpy(codes), torch.from_numpy(reference))
    decoded = clip_boxes_to_image(decoded.reshape(-1, 4), (50, 60)).reshape(1, 20, columns, 4).numpy()
    inputs = [codes.reshape(1, 20, columns, 4), reference[None], np.array([[50.0, 60.0]])]
    case("torchvision's decoded boxes", "decode", inputs, [decoded], order="xy", weights=[10, 12, 5, 6],
         max_growth=coder.bbox_xform_clip)


def kept(order, groups, scores, most):
    order = np.asarray(order[:most], int)
    fill = lambda x: np.concatenate([x[order], np.zeros(most - len(order), x.dtype)])[None]
    rows = np.arange(len(groups))
    return [fill(rows), fill(groups), fill(scores.astype(np.float64)), np.array([len(order)])]


def suppression_inputs(name):
    count = {"no box": 0, "one box": 1}.get(name, 150)
    rows, groups = boxes(count, 100), RANDOM.randint(0, 4, count)
    scores = rounded(RANDOM.uniform(0.002, 1, count), 4096)
    if name == "equal scores and boxes":
        rows, scores = np.floor(rows / 8) * 8, np.floor(scores * 8) / 8
        rows[::5, 2:] = rows[::5, :2]
        groups[:] = groups // 2
    return rows, groups, scores


SUPPRESSED = ["no box", "one box", "many boxes", "equal scores and boxes"]


def hard_cases():
    for name in SUPPRESSED:
        rows, groups, scores = suppression_inputs(name)
        order = batched_nms(*(torch.from_numpy(x) for x in (rows, scores, groups)), iou_threshold=0.5).numpy()
        order = order[np.argsort(-scores[order], kind="stable")]
        capacity = max(len(rows), 3)
        pad = lambda x: np.concatenate([x, np.ones((capacity - len(x), *x.shape[1:]), x.dtype)])[None]
        inputs = [pad(rows), pad(scores), pad(groups), np.array([len(rows)])]
        case(f"torchvision's batched suppression, {name}", "suppress", inputs, kept(order, groups, scores, 100),
             iou=0.5, max_outputs=100)


def soft_per_class(rows, scores, groups, sigma, floor):
    """Gaussian soft suppression of each class, sides counted in pixels, and the merge of all."""
    results = []
    for group in np.unique(groups):
        left = np.flatnonzero(groups == group)
        now = scores[left].copy()
        while len(left):
            top = np.argmax(now)
            best, score = left[top], now[top]
            results.append((score, group, best))
            left, now = np.delete(left, top), np.delete(now, top)
            low, high = np.maximum(rows[left, :2], rows[best, :2]), np.minimum(rows[left, 2:], rows[best, 2:])
            inter = np.maximum(high - low + 1, 0).prod(1)
            area = lambda b: (b[..., 2] - b[..., 0] + 1) * (b[..., 3] - b[..., 1] + 1)
            iou = inter / (area(rows[left]) + area(rows[best]) - inter)
            now = now * np.exp(-(iou**2) / sigma)
            left, now = left[now >= floor], now[now >= floor]
    results.sort(key=lambda r: (-r[0], r[1], r[2]))
    return [r[2] for r in results], np.array([r[0] for r in results])


def soft_cases():
    for name in SUPPRESSED[:3]:
        rows, groups, scores = suppression_inputs(name)
        order, decayed = soft_per_class(rows, scores, groups, 0.5, 0.001)
        now = np.zeros(len(rows))
        now[order] = decayed
        capacity = max(len(rows), 3)
        pad = lambda x: np.concatenate([x, np.ones((capacity - len(x), *x.shape[1:]), x.dtype)])[None]
        inputs = [pad(rows), pad(scores), pad(groups), np.array([len(rows)])]
        case(f"soft suppression of each class, {name}", "suppress", inputs, kept(np.array(order), groups, now, 100),
             sigma=0.5, floor=0.001, legacy=True, max_outputs=100)


def detection_cases():
    grid = yx(rounded(anchors().boxes.numpy()))[::4]
    classes, points, most = 4, 120, 40
    # No two logits of an image are equal: torch's top-k orders equal ones as it likes.
    logits = np.stack([RANDOM.permutation(len(grid) * classes) for _ in range(2)]).reshape(2, -1, classes) / 128 - 5
    deltas = rounded(RANDOM.normal(0, 0.5, (2, len(grid), 4)), 256)
    sizes = np.array([[60.0, 48.0], [64.0, 64.0]])
    for soft in [False, True]:
        found = []
        for image in range(2):
            top = torch.topk(torch.from_numpy(logits[image].ravel()), points)
            indices, labels = top.indices // classes, top.indices % classes
            with in_double():
                found.append(generate_detections(
                    top.values[:, None], torch.from_numpy(deltas[image])[indices], torch.from_numpy(yx(grid)), indices,
                    labels, torch.tensor(1.0).double(), torch.from_numpy(sizes[image][::-1].copy()), most, soft).numpy())
        found = np.stack(found)
        valid = (found[..., 5] > 0).sum(1)
        labels = np.maximum(found[..., 5] - 1, 0).astype(int)
        rule = {"sigma": 0.5, "floor": 0.001, "score_floor": 0.001} if soft else {"iou": 0.5}
        case(f"effdet's detections, {'soft' if soft else 'hard'}", "detections", [logits, deltas, grid, sizes],
             [found[..., :4], found[..., 4], labels, valid], points=points, max_outputs=most, **rule)


def top_k_case():
    x = rounded(RANDOM.randint(-20, 20, (2, 9, 30)) / 4)
    values, order = torch.sort(torch.from_numpy(x.reshape(2, -1)), dim=1, descending=True, stable=True)
    values, order = values[:, :100].numpy(), order[:, :100].numpy()
    case("torch's stable sort", "top_k", [x], [values, order // 30, order % 30], k=100)


def sample_case():
    labels = RANDOM.choice([-1, 0, 0, 0, 1, 2], (3, 60))
    labels[1, labels[1] > 0] = 0
    labels[2, labels[2] == 0] = -1
    shuffle, torch.randperm = torch.randperm, lambda n, device=None: torch.arange(n)
    positives, negatives = BalancedPositiveNegativeSampler(12, 0.5)(list(torch.from_numpy(labels)))
    torch.randperm = shuffle
    chosen = (torch.stack(positives) + torch.stack(negatives)).numpy() > 0
    case("torchvision's sample in order", "sample_labels", [labels], [np.where(chosen, labels, -1)], total=12,
         most_positives=6)


def proposal_cases():
    levels, batch = [96, 48, 9], 2
    count = sum(levels)
    grid = boxes(count, 100)
    deltas = rounded(RANDOM.normal(0, 0.3, (batch, count, 4)), 256)
    deltas[:, ::7, 2:] = -12
    # No two are equal: torch's top-k orders equal ones as it likes.
    objectness = np.stack([RANDOM.permutation(count) for _ in range(batch)]) / 32 - 2
    sizes = np.array([[90.0, 100.0], [100.0, 80.0]])
    decoded = BoxCoder((1.0, 1.0, 1.0, 1.0)).decode(torch.from_numpy(deltas.reshape(-1, 4)),
                                                   [torch.from_numpy(grid)] * batch).reshape(batch, count, 4)
    for candidates, most in [(40, 20), (1000, 200)]:
        top = {"training": candidates, "testing": candidates}
        network = RegionProposalNetwork(None, None, 0.7, 0.3, 256, 0.5, top, {"training": most, "testing": most}, 0.7)
        shapes = [tuple(size) for size in sizes]
        kept, scores = network.filter_proposals(decoded, torch.from_numpy(objectness), shapes, levels)
        fill = lambda x: np.concatenate([x.numpy(), np.zeros((most - len(x), *x.shape[1:]))])
        outputs = [*(np.stack([fill(x) for x in found]) for found in (kept, scores)), np.array([len(x) for x in kept])]
        inputs = [objectness, deltas, grid, sizes]
        case(f"torchvision's proposals of {candidates} candidates a level", "proposals", inputs, outputs, levels=levels,
             points=candidates, max_outputs=most, iou=0.7, min_size=1e-3)


def roi_cases():
    canvas, strides, channels = (64, 96), [4, 8, 16, 32], 2
    sides = [(canvas[0] // s, canvas[1] // s) for s in strides]
    maps = [rounded(RANDOM.normal(0, 1, (2, *side, channels)), 64) for side in sides]
    special = [[0, 0, 0, 0], [-9, -7, 30, 20], [60, 40, 120, 90], [5, 5, 5, 30], [0, 0, 96, 64], [93, 60, 95, 63]]
    regions = np.concatenate([rounded(special), boxes(8, 60, largest=60.0)])
    images = np.arange(len(regions)) % 2
    for size, samples in [((7, 7), 2), ((3, 2), 0)]:
        features = {str(i): torch.from_numpy(m).permute(0, 3, 1, 2).requires_grad_() for i, m in enumerate(maps)}
        leaves = list(features.values())
        pool = MultiScaleRoIAlign(list(features), size, samples, canonical_scale=30, canonical_level=4)
        order = np.argsort(images, kind="stable")
        split = [torch.from_numpy(regions[images == image]) for image in range(2)]
        pooled = pool(features, split, [canvas] * 2)[torch.from_numpy(np.argsort(order, kind="stable"))]
        pooled = pooled.permute(0, 2, 3, 1)
        dy = rounded(RANDOM.normal(0, 1, pooled.shape), 16)
        grads = torch.autograd.grad(pooled, leaves, torch.from_numpy(dy))
        outputs = [pooled.detach().numpy()] + [g.permute(0, 2, 3, 1).numpy() for g in grads]
        inputs = [*maps, regions, images, dy]
        case(f"torchvision's features of regions, {samples or 'adaptive'} samples", "roi_align", inputs, outputs, size=size,
             samples=samples, strides=strides, canonical_size=30, eps=1e-6)


def mask_case():
    size, side = 14, 32
    yy, xx = np.mgrid[:side, :side]
    discs = [(xx - a) ** 2 + (yy - b) ** 2 < r**2 for a, b, r in [(16, 16, 14), (9, 20, 7), (26, 6, 11)]]
    crops = np.where(discs, 255, 0).astype(np.uint8)
    crops[1] = crops[1] // 255 * (8 * xx)
    gt = rounded([[10, 20, 60, 90], [5, 5, 25, 21], [40, 8, 90, 30]])
    regions = [[12, 18, 58, 80], [0, 0, 100, 100], [5, 5, 25, 21], [8, 2, 30, 20], [45, 10, 80, 25], [0, 60, 9, 70]]
    regions = rounded(regions)
    numbers = np.array([0, 0, 1, 1, 2, -1])
    targets = np.zeros((len(regions), size, size))
    shares = np.zeros_like(targets)
    for p, (region, number) in enumerate(zip(regions, numbers)):
        if number < 0:
            continue
        shares[p] = mask_shares(crops[number], gt[number], region, size)
        targets[p] = shares[p] >= 0.5
        assert np.abs(shares[p] - 0.5).min() > 1e-9
    inputs = [crops[None], gt[None], regions, np.zeros(len(regions), int), numbers]
    case("mask targets of the recipe", "mask_targets", inputs, [targets], size=size, border=BORDER, threshold=0.5)


anchor_case()
effdet_match_cases()
torchvision_match_cases()
decode_case()
hard_cases()
soft_cases()
detection_cases()
top_k_case()
sample_case()
proposal_cases()
roi_cases()
mask_case()
OUTPUT.parent.mkdir(exist_ok=True)
OUTPUT.write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in CASES) + "\n]\n")
print(f"{len(CASES)} cases, {OUTPUT.stat().st_size} bytes")
