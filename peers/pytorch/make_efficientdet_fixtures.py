"""Writes the EfficientDet fixture of crates/models: a narrow network of the `effdet` package with all that it computes.

A backbone of an eighth of B0's width, a pyramid of 16 channels and two cells, heads of two layers. Every expected value
but the detections, which the package computes in float32, comes from a float64 run that starts from the stored float32
weights. The output depends on nothing but this script and the versions of torch, timm and effdet.
"""

import argparse
import copy
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from effdet import DetBenchPredict, DetBenchTrain

import make_resnet_fixtures as fixtures
import resnet_reference as reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer.torch_efficientdet import float64, network

CANVAS, CLASSES, CAPACITY = 128, 5, 6
WIDTH, CELLS, DEPTH = 16, 2, 2
SGD_LR, SGD_STEPS = 1e-4, 10
CANDIDATES, DETECTIONS = 300, 20
MEAN = torch.tensor((0.485, 0.456, 0.406), dtype=torch.float64)
STD = torch.tensor((0.229, 0.224, 0.225), dtype=torch.float64)
# Weights after the steps are written for tensors of at most so many elements.
SMALL = 500


def make_model():
    # The published norms are those of the heads in all parts; timm's backbones have PyTorch's momentum by default.
    return network(SimpleNamespace(
        image_size=CANVAS, classes=CLASSES, backbone_width=0.125, backbone_depth=0.3, width=WIDTH, cells=CELLS, head_depth=DEPTH,
        norm_eps=1e-3, norm_momentum=0.01, anchor_scale=4.0, anchor_octaves=3,
        anchor_aspects=[(1.0, 1.0), (1.4, 0.7), (0.7, 1.4)]))


def randomise(model, generator):
    fixtures.randomise(model, generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("edge_weights"):
                # Some below zero, which the package takes for zero.
                parameter.copy_(0.2 + torch.rand(parameter.shape, generator=generator) * 1.3 - 0.4)
            elif name.endswith(".bias") and "bn" not in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        # Classes are rare, as in practice.
        model.class_net.predict.conv_pw.bias -= 2.0


def on_canvas(images, sizes):
    """Normalised float64 images [N, 3, H, W], zero outside of `sizes`."""
    x = ((images.double() / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    for image, (height, width) in zip(x, sizes):
        image[:, int(height):, :] = 0
        image[:, :, int(width):] = 0
    return x.contiguous()


def targets(objects):
    """Objects [(x1, y1, x2, y2, class)] of each image as the package takes them: classes from 1, boxes y first."""
    boxes = torch.full((len(objects), CAPACITY, 4), -1.0, dtype=torch.float64)
    classes = torch.full((len(objects), CAPACITY), -1.0)
    for i, image in enumerate(objects):
        for j, (x1, y1, x2, y2, label) in enumerate(image):
            boxes[i, j] = torch.tensor((y1, x1, y2, x2))
            classes[i, j] = label + 1
    return {"bbox": boxes, "cls": classes}


def feeds(images, sizes, objects):
    boxes = torch.zeros(len(objects), CAPACITY, 4)
    classes = torch.zeros(len(objects), CAPACITY, dtype=torch.int32)
    for i, image in enumerate(objects):
        for j, (*box, label) in enumerate(image):
            boxes[i, j] = torch.tensor(box)
            classes[i, j] = label
    count = torch.tensor([len(image) for image in objects], dtype=torch.int32)
    return {"images": images, "sizes": sizes, "boxes": boxes, "classes": classes, "count": count}


def losses(model, images, labels):
    with float64():
        out = DetBenchTrain(model)(images, labels)
    return out["loss"], out["class_loss"], out["box_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=fixtures.FIXTURES,
                        help="fixtures folder (default: crates/models/tests/fixtures)")
    folder = parser.parse_args().out / "efficientdet"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(20191120)
    model = make_model()
    randomise(model, generator)

    images = torch.randint(0, 256, (3, CANVAS, CANVAS, 3), generator=generator, dtype=torch.uint8)
    sizes = torch.tensor([[128.0, 100.0], [90.0, 128.0], [128.0, 128.0]])
    objects = [
        # Two classes at one place, and a small object that no anchor overlaps enough. The best anchor of an object is one by a
        # margin, or several overlap it equally and enough, so that rounding decides nothing.
        [(4.0, 6.0, 60.0, 70.0, 0), (4.0, 6.0, 60.0, 70.0, 3), (27.0, 27.125, 49.0, 48.875, 1)],
        [],
        [(0.0, 0.0, 128.0, 128.0, 2), (20.0, 24.0, 52.0, 56.0, 4), (28.0, 24.0, 60.0, 56.0, 4),
         (100.0, 2.0, 127.0, 30.0, 0), (5.0, 90.0, 50.0, 127.0, 1), (91.0, 59.125, 113.0, 80.875, 2)],
    ]
    x, labels = on_canvas(images, sizes), targets(objects)

    truth = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        class_logits, deltas = truth(x)
    outputs = {f"classes.{level + 3}": logits.permute(0, 2, 3, 1).contiguous() for level, logits in enumerate(class_logits)}
    outputs |= {f"boxes.{level + 3}": delta.permute(0, 2, 3, 1).contiguous() for level, delta in enumerate(deltas)}
    predict = DetBenchPredict(truth)
    predict.max_detection_points, predict.max_det_per_image = CANDIDATES, DETECTIONS
    with torch.no_grad():
        info = {"img_scale": torch.ones(3), "img_size": sizes.flip(1)}
        detections = predict(x, info)
    outputs["detections"] = detections

    train = copy.deepcopy(model).double().train()
    loss, class_loss, box_loss = losses(train, x, labels)
    loss.backward()
    gradients = {name: p.grad for name, p in train.named_parameters()}
    with float64():
        positives = DetBenchTrain(train).anchor_labeler.batch_label_anchors(labels["bbox"], labels["cls"])[2]
    statistics = fixtures.running_statistics(train)

    steps = copy.deepcopy(model).double().train()
    optimizer = torch.optim.SGD(steps.parameters(), lr=SGD_LR, momentum=0.9)
    step_losses = []
    for _ in range(SGD_STEPS):
        optimizer.zero_grad()
        step_loss = losses(steps, x, labels)[0]
        step_loss.backward()
        optimizer.step()
        step_losses.append(step_loss.item())

    def small(tensors):
        return {name: t for name, t in tensors.items() if t.is_floating_point() and t.numel() <= SMALL}

    reference.write_tensors(folder / "weights.safetensors", model.state_dict())
    reference.write_tensors(folder / "feeds.safetensors", feeds(images, sizes, objects))
    reference.write_tensors(folder / "outputs.safetensors", outputs)
    reference.write_tensors(folder / "gradients.safetensors", gradients)
    reference.write_tensors(folder / "statistics_after_one_step.safetensors", small(statistics))
    reference.write_tensors(folder / "final_weights.safetensors", small(steps.state_dict()))
    reference.write_json(folder / "expected.json", {
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": {"loss": loss.item(), "cls_loss": class_loss.item(), "box_loss": box_loss.item()},
        "positives": [int(n) for n in positives],
        "sgd": {"lr": SGD_LR, "momentum": 0.9, "losses": step_losses},
        "candidates": CANDIDATES, "detections": DETECTIONS,
    })


if __name__ == "__main__":
    main()
