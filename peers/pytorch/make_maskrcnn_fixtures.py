"""Writes the Mask R-CNN fixture of crates/models: a narrow network of torchvision's parts with all that it computes.

A ResNet of one bottleneck a stage with a stem of 4 channels, a pyramid of 16 channels, small heads. All norms, the stem and the
first stage are frozen. Samples are the first ones in order, and the masks that regions are to predict come from crops of the
objects' masks (`mask_crops.py`). Every expected value comes from a float64 run that starts from the stored float32 weights.
The output depends on nothing but this script and the versions of torch and torchvision.
"""

import argparse
import copy
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torchvision.models.detection import MaskRCNN, roi_heads
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FrozenBatchNorm2d

import make_resnet_fixtures as fixtures
import resnet_reference as reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from peer import torch_maskrcnn

CANVAS, CLASSES, CAPACITY, CROP = (128, 192), 5, 6, 28
STEM, FPN, BOX_WIDTH, MASK_WIDTHS = 4, 16, 20, (16, 12)
CANDIDATES, PROPOSALS = {"training": 60, "testing": 40}, {"training": 50, "testing": 30}
ANCHOR_SAMPLES, REGION_SAMPLES, POSITIVE_REGIONS = 5900, 64, 16
SCORE_FLOOR, DETECTIONS = 0.2, 20
SGD_LR, SGD_STEPS = 1e-3, 10
MEAN = torch.tensor((0.485, 0.456, 0.406), dtype=torch.float64)
STD = torch.tensor((0.229, 0.224, 0.225), dtype=torch.float64)
# Of larger tensors every n-th element is written, with the least n that leaves so many; after the steps none.
MOST_WRITTEN, SMALL = 4000, 500


def make_model():
    planes = [STEM << stage for stage in range(4)]
    body = fixtures.SmallResNet(Bottleneck, (1, 1, 1, 1), STEM, planes, FrozenBatchNorm2d)
    layers = {f"layer{stage + 1}": str(stage) for stage in range(4)}
    backbone = BackboneWithFPN(body, layers, [4 * width for width in planes], FPN)
    for name, parameter in backbone.body.named_parameters():
        parameter.requires_grad_(not name.startswith(("conv1", "layer1")))
    return MaskRCNN(
        backbone,
        rpn_anchor_generator=AnchorGenerator(((32,), (64,), (128,), (256,), (512,)), ((0.5, 1.0, 2.0),) * 5),
        rpn_pre_nms_top_n_train=CANDIDATES["training"], rpn_pre_nms_top_n_test=CANDIDATES["testing"],
        rpn_post_nms_top_n_train=PROPOSALS["training"], rpn_post_nms_top_n_test=PROPOSALS["testing"],
        rpn_batch_size_per_image=ANCHOR_SAMPLES,
        box_head=TwoMLPHead(FPN * 7 * 7, BOX_WIDTH), box_predictor=FastRCNNPredictor(BOX_WIDTH, CLASSES),
        box_batch_size_per_image=REGION_SAMPLES, box_positive_fraction=POSITIVE_REGIONS / REGION_SAMPLES,
        box_score_thresh=SCORE_FLOOR, box_detections_per_img=DETECTIONS,
        mask_head=MaskRCNNHeads(FPN, MASK_WIDTHS, 1),
        mask_predictor=MaskRCNNPredictor(MASK_WIDTHS[-1], MASK_WIDTHS[-1], CLASSES),
    )


def randomise(model, generator):
    fixtures.randomise(model, generator)

    def scatter(tensor, mean, std):
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=generator))

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, FrozenBatchNorm2d):
                scatter(module.weight, 1.0, 0.2)
                scatter(module.bias, 0.0, 0.2)
                scatter(module.running_mean, 0.0, 0.3)
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
            elif isinstance(module, nn.ConvTranspose2d):
                scatter(module.weight, 0.0, math.sqrt(2 / module.in_channels))
                scatter(module.bias, 0.0, 0.2)
        # Proposals not far from their reference boxes, losses of some units.
        model.rpn.head.bbox_pred.weight.mul_(0.1)
        model.rpn.head.cls_logits.weight.mul_(0.3)
        model.roi_heads.mask_predictor.mask_fcn_logits.weight.mul_(0.05)
        model.roi_heads.box_predictor.cls_score.weight.mul_(0.04)
        model.roi_heads.box_predictor.bbox_pred.weight.mul_(0.1)


def on_canvas(images, sizes):
    """Normalised float64 images [N, 3, H, W], zero outside of `sizes`."""
    x = ((images.double() / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    for image, (height, width) in zip(x, sizes):
        image[:, height:, :] = 0
        image[:, :, width:] = 0
    return x.contiguous()


def draw_crop(number):
    """A disc of an object, in whole and half levels."""
    yy, xx = np.mgrid[:CROP, :CROP]
    inside = (xx - 10 - 2 * number) ** 2 + (yy - 15 + number) ** 2 < (9 + number) ** 2
    return np.where(inside, 255 - 8 * ((xx + yy) % 2), 0).astype(np.uint8)


def feeds(images, sizes, objects):
    boxes = torch.zeros(len(objects), CAPACITY, 4)
    classes = torch.zeros(len(objects), CAPACITY, dtype=torch.int32)
    crops = torch.zeros(len(objects), CAPACITY, CROP, CROP, dtype=torch.uint8)
    for i, image in enumerate(objects):
        for j, (*box, label) in enumerate(image):
            boxes[i, j] = torch.tensor(box)
            classes[i, j] = label
            crops[i, j] = torch.from_numpy(draw_crop(j))
    count = torch.tensor([len(image) for image in objects], dtype=torch.int32)
    sizes = torch.tensor(sizes, dtype=torch.float32)
    return {"images": images, "sizes": sizes, "boxes": boxes, "classes": classes, "crops": crops, "count": count}


def targets(fed):
    """As torchvision takes them; the masks are crops with their boxes."""
    lists = zip(fed["boxes"], fed["classes"], fed["crops"], fed["count"])
    return [{"boxes": boxes[:n].double(), "labels": classes[:n].long(), "masks": (crops[:n].numpy(), boxes[:n].double())}
            for boxes, classes, crops, n in lists]


def use_first_samples_and_crops():
    torch_maskrcnn.use_first_samples()
    roi_heads.project_masks_on_boxes = torch_maskrcnn.masks_from_crops


class Recorder:
    """Results of parts of a model by name, as they are computed."""

    def __init__(self, model):
        self.values = {}
        self.watch(model.rpn, "filter_proposals")
        self.watch(model.roi_heads, "assign_targets_to_proposals")
        self.watch(model.roi_heads, "select_training_samples")
        for name, module in {"features": model.backbone.body, "pyramid": model.backbone, "rpn": model.rpn.head,
                             "box": model.roi_heads.box_predictor, "mask": model.roi_heads.mask_predictor}.items():
            module.register_forward_hook(lambda _module, _inputs, output, name=name: self.values.update({name: output}))

    def watch(self, owner, method):
        original = getattr(owner, method)

        def recorded(*arguments):
            self.values[method] = original(*arguments)
            return self.values[method]

        setattr(owner, method, recorded)


def run(model, x, sizes, labels=None):
    """Losses by our names, or detections."""
    features = model.backbone(x)
    proposals, rpn_losses = model.rpn(ImageList(x, sizes), features, labels)
    detections, losses = model.roi_heads(features, proposals, sizes, labels)
    if labels is None:
        return detections
    return {"rpn_score_loss": rpn_losses["loss_objectness"], "rpn_box_loss": rpn_losses["loss_rpn_box_reg"],
            "cls_loss": losses["loss_classifier"], "box_loss": losses["loss_box_reg"], "mask_loss": losses["loss_mask"]}


def padded(tensors, rows, fill=0.0):
    """Tensors of different numbers of rows as one, with `fill` behind the last one of each."""
    out = torch.full((len(tensors), rows, *tensors[0].shape[1:]), fill, dtype=tensors[0].dtype)
    for row, tensor in zip(out, tensors):
        row[:len(tensor)] = tensor
    return out


def recorded_outputs(values, counts):
    """What a step computes, in the order of rows of this project: positive regions first, an image's rows padded."""
    outputs = {}
    for what, maps, first in [("c", values["features"], 2), ("p", values["pyramid"], 2)]:
        outputs |= {f"{what}{first + level}": reference.to_nhwc(x) for level, x in enumerate(maps.values())}
    for level, (logits, deltas) in enumerate(zip(*values["rpn"])):
        outputs[f"objectness.{level}"] = reference.to_nhwc(logits).reshape(len(logits), -1)
        outputs[f"anchor_deltas.{level}"] = reference.to_nhwc(deltas).reshape(len(deltas), -1, 4)
    proposals = values["filter_proposals"][0]
    outputs["proposals"] = padded(proposals, PROPOSALS["training"])
    outputs["proposal_count"] = torch.tensor([len(x) for x in proposals], dtype=torch.int32)
    matches = []
    for numbers, labels, boxes, count in zip(*values["assign_targets_to_proposals"], proposals, counts):
        match = torch.where(labels > 0, numbers, labels - 1).int()
        # No object and no proposal: neither an object nor background.
        matches.append(padded([match[:len(boxes)]], PROPOSALS["training"], -2)[0])
        matches[-1] = torch.cat([matches[-1], padded([match[len(boxes):]], CAPACITY, -2)[0]])
    outputs["matches"] = torch.stack(matches)
    regions, _, labels, _ = values["select_training_samples"]
    order = [torch.sort((own == 0).int(), stable=True).indices for own in labels]
    starts = np.cumsum([0] + [len(own) for own in labels])
    outputs["regions"] = padded([boxes[own] for boxes, own in zip(regions, order)], REGION_SAMPLES)
    outputs["kinds"] = padded([(label[own] > 0).int() for label, own in zip(labels, order)], REGION_SAMPLES, -1)
    rows = torch.cat([own + int(start) for own, start in zip(order, starts)])
    logits, deltas = values["box"]
    outputs["logits"], outputs["deltas"] = logits[rows], deltas[rows].reshape(-1, CLASSES, 4)
    positive = torch.cat([label[label > 0] for label in labels])
    outputs["mask_logits"] = values["mask"][torch.arange(len(positive)), positive]
    return outputs


def sampled(tensors):
    """Floats of large tensors thinned out, as vectors."""
    def thin(tensor):
        step = -(-tensor.numel() // MOST_WRITTEN)
        return tensor.flatten()[::step] if tensor.is_floating_point() else tensor
    return {name: thin(tensor.detach()) for name, tensor in tensors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=fixtures.FIXTURES,
                        help="fixtures folder (default: crates/models/tests/fixtures)")
    folder = parser.parse_args().out / "maskrcnn"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(20170320)
    model = make_model()
    randomise(model, generator)

    images = torch.randint(0, 256, (3, *CANVAS, 3), generator=generator, dtype=torch.uint8)
    # One image fills the canvas: torchvision takes the strides of the maps from the largest sides.
    sizes = [(128, 192), (100, 150), (120, 180)]
    objects = [
        [(4.0, 6.0, 60.0, 70.0, 1), (70.5, 20.25, 180.0, 120.0, 3), (100.0, 40.0, 130.0, 66.0, 4)],
        [],
        [(0.0, 0.0, 180.0, 120.0, 2), (20.0, 24.0, 52.0, 56.0, 4), (30.0, 26.0, 64.0, 62.0, 4), (150.0, 4.0, 176.0, 30.0, 1),
         (5.0, 80.0, 50.0, 117.0, 1)],
    ]
    fed = feeds(images, sizes, objects)
    x, labels = on_canvas(images, sizes), targets(fed)
    use_first_samples_and_crops()

    truth = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        detections = run(truth, x, sizes)
    found = {f"detected.{name}": padded([image[name].squeeze(1) if name == "masks" else image[name] for image in detections],
                                        DETECTIONS)
             for name in ("boxes", "scores", "labels", "masks")}
    found["detected.labels"] = found["detected.labels"].int()
    found["detected.count"] = torch.tensor([len(image["boxes"]) for image in detections], dtype=torch.int32)

    train = copy.deepcopy(model).double().train()
    recorder = Recorder(train)
    losses = run(train, x, sizes, labels)
    loss = sum(losses.values())
    loss.backward()
    outputs = recorded_outputs(recorder.values, fed["count"])
    gradients = {name: p.grad for name, p in train.named_parameters() if p.requires_grad}

    steps = copy.deepcopy(model).double().train()
    optimizer = torch.optim.SGD([p for p in steps.parameters() if p.requires_grad], lr=SGD_LR, momentum=0.9)
    step_losses = []
    for _ in range(SGD_STEPS):
        optimizer.zero_grad()
        step_loss = sum(run(steps, x, sizes, labels).values())
        step_loss.backward()
        optimizer.step()
        step_losses.append(step_loss.item())
    final = {name: p for name, p in steps.named_parameters() if p.requires_grad and p.numel() <= SMALL}

    reference.write_tensors(folder / "weights.safetensors", model.state_dict())
    reference.write_tensors(folder / "feeds.safetensors", fed)
    reference.write_tensors(folder / "outputs.safetensors", sampled(outputs | found))
    reference.write_tensors(folder / "gradients.safetensors", gradients)
    reference.write_tensors(folder / "final_weights.safetensors", final)
    reference.write_json(folder / "expected.json", {
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": {"loss": loss.item()} | {name: value.item() for name, value in losses.items()},
        "sgd": {"lr": SGD_LR, "momentum": 0.9, "losses": step_losses},
    })


if __name__ == "__main__":
    main()
