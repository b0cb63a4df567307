"""Writes what a detector of full size computes for photos, for comparison: effdet's EfficientDet-D0 or torchvision's Mask R-CNN.

    python export_detector_parity.py mask-rcnn --data coco/ --out DIR

OUT/weights.safetensors    weights drawn by the package, under its names; statistics of frozen norms are those of the photos
OUT/feeds.safetensors      `images` u8 [N, H, W, 3], `sizes`, `boxes`, `classes`, `count`, and for masks `crops`, as Bessemer takes them
OUT/outputs.safetensors    outputs of the network on all levels, [N, H, W, channels]
OUT/heads.safetensors      of Mask R-CNN's sampled regions: `images` i32 [R], `boxes` [R, 4], `logits` [R, K], `deltas` [R, K, 4], and of
                           those with an object, whose `rows` i32 [P] are given, the `masks` of their classes [P, M, M]
OUT/gradients.safetensors  gradient of the loss for all trained parameters
OUT/expected.json          losses, and what float32 runs deviate (relative L2 per tensor, the most of all runs): by oneDNN with channels
                           first and last, and without it

Expected values come from a float64 run and are stored as float32. Samples are the first ones in order. The masks of objects are
ellipses that fill their boxes.
"""

import argparse
import contextlib
import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

import resnet_reference as reference
from make_maskrcnn_fixtures import Recorder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

MEAN, STD = np.array((0.485, 0.456, 0.406)), np.array((0.229, 0.224, 0.225))
CAPACITY, CROP = 100, 112
LOSS = {"alpha": 0.25, "gamma": 1.5, "delta": 0.1, "box_weight": 50.0, "l2": 0.0}


def read_photos(folder, count, canvas):
    """Photos in the upper left corners of canvases, and their objects."""
    known = json.loads((folder / "annotations" / "instances_val2017.json").read_text())
    objects = {}
    for annotation in known["annotations"]:
        if not annotation["iscrowd"]:
            objects.setdefault(annotation["image_id"], []).append(annotation)
    records = [record for record in sorted(known["images"], key=lambda record: record["id"])
               if len(objects.get(record["id"], ())) >= 3 and record["width"] > record["height"]][:count]
    fed = {"images": np.zeros((count, *canvas, 3), np.uint8), "sizes": np.zeros((count, 2), np.float32),
           "boxes": np.zeros((count, CAPACITY, 4), np.float32), "classes": np.zeros((count, CAPACITY), np.int32),
           "crops": np.zeros((count, CAPACITY, CROP, CROP), np.uint8), "count": np.zeros(count, np.int32)}
    yy, xx = np.mgrid[:CROP, :CROP] * 2.0 / (CROP - 1) - 1
    for i, record in enumerate(records):
        scale = min(canvas[0] / record["height"], canvas[1] / record["width"])
        height, width = int(record["height"] * scale), int(record["width"] * scale)
        photo = Image.open(folder / "val2017" / record["file_name"]).convert("RGB").resize((width, height), Image.BILINEAR)
        fed["images"][i, :height, :width], fed["sizes"][i] = np.asarray(photo), (height, width)
        for j, annotation in enumerate(objects[record["id"]][:CAPACITY]):
            x, y, across, down = (side * scale for side in annotation["bbox"])
            fed["boxes"][i, j] = (x, y, min(x + across, width - 1), min(y + down, height - 1))
            fed["classes"][i, j] = annotation["category_id"]
            fed["crops"][i, j] = 255 * (xx * xx + yy * yy < 1)
            fed["count"][i] += 1
    return fed


def on_canvas(fed):
    """Normalised float64 images [N, 3, H, W], zero outside of `sizes`."""
    images = (fed["images"] / 255.0 - MEAN) / STD
    for image, (height, width) in zip(images, fed["sizes"].astype(int)):
        image[height:], image[:, width:] = 0, 0
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


class MaskRcnn:
    CANVAS = (800, 1344)

    def __init__(self, fed):
        from peer import torch_maskrcnn
        from torchvision.models.detection import roi_heads
        from torchvision.ops import FrozenBatchNorm2d
        self.peer, self.frozen = torch_maskrcnn, FrozenBatchNorm2d
        torch_maskrcnn.use_first_samples()
        roi_heads.project_masks_on_boxes = torch_maskrcnn.masks_from_crops
        self.sizes = [tuple(int(side) for side in size) for size in fed["sizes"]]
        self.targets = [{"boxes": torch.from_numpy(boxes[:n]), "labels": torch.from_numpy(classes[:n]).long(), "crops": crops[:n]}
                        for boxes, classes, crops, n in zip(fed["boxes"], fed["classes"], fed["crops"], fed["count"])]
        self.feeds = fed

    def make(self, x):
        sizes = SimpleNamespace(
            base_width=64, depths=[3, 4, 6, 3], width=256, box_width=1024, mask_widths=[256] * 4, classes=91, norm_eps=1e-5, frozen=2,
            anchor_scale=8.0, proposals=[[2000, 2000], [1000, 1000]], proposal_overlap=0.7, anchor_samples=[256, 128],
            region_samples=[512, 128])
        model = self.peer.network(sizes)

        def settle(norm, inputs):
            norm.running_mean.copy_(inputs[0].mean((0, 2, 3)))
            norm.running_var.copy_(inputs[0].var((0, 2, 3)))
        hooks = [norm.register_forward_pre_hook(settle) for norm in model.modules() if isinstance(norm, self.frozen)]
        with torch.no_grad():
            model.backbone.body(x.float())
        for hook in hooks:
            hook.remove()
        return model

    def loss(self, model, x):
        targets = [dict(target, boxes=target["boxes"].to(x.dtype)) for target in self.targets]
        targets = [dict(target, masks=(target["crops"], target["boxes"])) for target in targets]
        self.recorder = Recorder(model)
        losses = self.peer.losses(model.train(), x, self.sizes, targets)
        names = {"loss_objectness": "rpn_score_loss", "loss_rpn_box_reg": "rpn_box_loss", "loss_classifier": "cls_loss",
                 "loss_box_reg": "box_loss", "loss_mask": "mask_loss"}
        return sum(losses.values()), {names[name]: value.item() for name, value in losses.items()}

    def outputs(self, model, x):
        maps = list(model.backbone(x).values())
        logits, deltas = model.rpn.head(maps)
        return {f"{name}.{level}": tensor for name, tensors in (("pyramid", maps), ("objectness", logits), ("deltas", deltas))
                for level, tensor in enumerate(tensors)}

    def heads(self):
        """What the heads made of the regions of the last step."""
        regions, _, labels, _ = self.recorder.values["select_training_samples"]
        logits, deltas = self.recorder.values["box"]
        labels = torch.cat(labels)
        rows = torch.nonzero(labels > 0)[:, 0]
        return {"images": torch.cat([torch.full((len(boxes),), image) for image, boxes in enumerate(regions)]).int(),
                "boxes": torch.cat(regions), "logits": logits, "deltas": deltas.reshape(len(logits), -1, 4), "rows": rows.int(),
                "masks": self.recorder.values["mask"][torch.arange(len(rows)), labels[rows]]}


class EfficientDet:
    CANVAS = (512, 512)

    def __init__(self, fed):
        from peer import torch_efficientdet
        self.peer = torch_efficientdet
        # Classes from 0 on.
        fed["classes"] -= (np.arange(CAPACITY) < fed["count"][:, None]).astype(np.int32)
        self.feeds = {name: array for name, array in fed.items() if name != "crops"}
        self.work = SimpleNamespace(training=SimpleNamespace(loss=LOSS), sizes=SimpleNamespace(
            image_size=512, classes=90, backbone_width=1.0, backbone_depth=1.0, width=64, cells=3, head_depth=3, norm_eps=1e-3,
            norm_momentum=0.01, anchor_scale=4.0, anchor_octaves=3, anchor_aspects=[[1.0, 1.0], [1.4, 0.7], [0.7, 1.4]]))

    def make(self, x):
        return self.peer.network(self.work.sizes)

    def loss(self, model, x):
        model.train()
        boxes, classes = self.peer.objects_of(self.feeds)
        with self.peer.float64() if x.dtype == torch.float64 else contextlib.nullcontext():
            targets = self.peer.matcher(model)((boxes.to(x.dtype), classes))
            return self.peer.loss(self.work, model(x), targets), {}

    def heads(self):
        return {}

    def outputs(self, model, x):
        classes, boxes = model.eval()(x)
        return {f"{name}.{level + 3}": tensor for name, tensors in (("classes", classes), ("boxes", boxes))
                for level, tensor in enumerate(tensors)}


def compute(detector, model, x):
    """Outputs, losses by name, gradients by name."""
    with torch.no_grad():
        outputs = {name: reference.to_nhwc(tensor) for name, tensor in detector.outputs(model, x).items()}
    loss, parts = detector.loss(model, x)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    return outputs, {"loss": loss.item(), **parts}, gradients


def float32_runs(detector, model, x):
    """Computes in float32 by several kernels: what rounding alone makes of a value is known from more than one run."""
    for layout in (torch.contiguous_format, torch.channels_last):
        yield compute(detector, copy.deepcopy(model).to(memory_format=layout), x.float().to(memory_format=layout))
    with torch.backends.mkldnn.flags(enabled=False):
        yield compute(detector, copy.deepcopy(model), x.float())


def most(runs):
    """The greatest of each value of several dictionaries."""
    return {name: max(run[name] for run in runs) for name in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["efficientdet-d0", "mask-rcnn"])
    parser.add_argument("--data", type=Path, required=True, help="a folder in COCO's layout, of which val2017 is read")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    kind = {"efficientdet-d0": EfficientDet, "mask-rcnn": MaskRcnn}[args.model]
    detector = kind(read_photos(args.data, args.batch_size, kind.CANVAS))
    x = on_canvas(detector.feeds)
    model = detector.make(x)
    weights = copy.deepcopy(model.state_dict())
    outputs, losses, gradients = compute(detector, copy.deepcopy(model).double(), x)
    heads = detector.heads()
    rounded = [{"losses": {name: abs(own[name] / loss - 1) for name, loss in losses.items()},
                "outputs": reference.distances(out, outputs), "gradients": reference.distances(grad, gradients)}
               for out, own, grad in float32_runs(detector, model, x)]

    reference.write_tensors(args.out / "weights.safetensors", weights)
    reference.write_tensors(args.out / "feeds.safetensors", {name: torch.from_numpy(array) for name, array in detector.feeds.items()})
    reference.write_tensors(args.out / "outputs.safetensors", outputs)
    reference.write_tensors(args.out / "gradients.safetensors", gradients)
    reference.write_tensors(args.out / "heads.safetensors", heads)
    reference.write_json(args.out / "expected.json", {
        "model": args.model, "torch": torch.__version__, "seed": args.seed, "losses": losses,
        "float32": {kind: most([run[kind] for run in rounded]) for kind in ("losses", "outputs", "gradients")},
    })


if __name__ == "__main__":
    main()
