"""torchvision's Mask R-CNN with the weights of the work. Samples are the first ones in order, as in the work of the others."""

import functools
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN, roi_heads
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.ops import FrozenBatchNorm2d

from .mask_crops import mask_shares
from .torch_images import DetectorImages, pinned
from .torch_sgd import fused_sgd
from .work import Cannot

STEM = 64
LEVELS, STRIDE = 5, 4
BOX_SIZE = 7


def network(sizes):
    if sizes.base_width != STEM:
        raise Cannot(f"torchvision's ResNet begins with {STEM} channels, not with {sizes.base_width}")
    norm = functools.partial(FrozenBatchNorm2d, eps=sizes.norm_eps)
    body = ResNet(Bottleneck, sizes.depths, norm_layer=norm)
    layers = {f"layer{stage + 1}": str(stage) for stage in range(4)}
    backbone = BackboneWithFPN(body, layers, [STEM * 4 << stage for stage in range(4)], sizes.width)
    frozen = tuple(["conv1", "layer1", "layer2", "layer3", "layer4"][:sizes.frozen])
    for name, parameter in backbone.body.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    boxes = tuple((int(sizes.anchor_scale * (STRIDE << level)),) for level in range(LEVELS))
    train, test = (SimpleNamespace(candidates=candidates, most=most) for candidates, most in sizes.proposals)
    anchors, regions = sizes.anchor_samples, sizes.region_samples
    return MaskRCNN(
        backbone, rpn_anchor_generator=AnchorGenerator(boxes, ((0.5, 1.0, 2.0),) * LEVELS),
        rpn_pre_nms_top_n_train=train.candidates, rpn_pre_nms_top_n_test=test.candidates,
        rpn_post_nms_top_n_train=train.most, rpn_post_nms_top_n_test=test.most, rpn_nms_thresh=sizes.proposal_overlap,
        rpn_batch_size_per_image=anchors[0], rpn_positive_fraction=anchors[1] / anchors[0],
        box_head=TwoMLPHead(sizes.width * BOX_SIZE * BOX_SIZE, sizes.box_width),
        box_predictor=FastRCNNPredictor(sizes.box_width, sizes.classes),
        box_batch_size_per_image=regions[0], box_positive_fraction=regions[1] / regions[0],
        mask_head=MaskRCNNHeads(sizes.width, sizes.mask_widths, 1),
        mask_predictor=MaskRCNNPredictor(sizes.mask_widths[-1], sizes.mask_widths[-1], sizes.classes),
    )


def make(work):
    model = network(work.sizes)
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in work.weights.items()
                           if not name.endswith("num_batches_tracked")})
    return model


def feeds_of(work):
    """Of each batch the sizes of its images, and what torchvision takes of the objects."""
    names = ["sizes", "boxes", "classes", "crops", "count"]
    batches = []
    for fed in work.named_feeds(names):
        sizes = [tuple(int(side) for side in size) for size in fed["sizes"]]
        targets = [{"boxes": torch.from_numpy(boxes[:n]), "labels": torch.from_numpy(classes[:n]).long(), "crops": crops[:n]}
                   for boxes, classes, crops, n in zip(fed["boxes"], fed["classes"], fed["crops"], fed["count"])]
        batches.append((sizes, targets))
    return batches


def whole_masks(target, canvas):
    """u8 [objects, H, W] of crops, each resized to the pixels of its box."""
    masks = torch.zeros(len(target["boxes"]), *canvas, dtype=torch.uint8)
    for mask, crop, box in zip(masks, target["crops"], target["boxes"]):
        left, top, right, bottom = (int(side) for side in box)
        size = (max(bottom - top, 1), max(right - left, 1))
        resized = F.interpolate(torch.from_numpy(crop).float()[None, None], size, mode="bilinear")[0, 0]
        mask[top:top + size[0], left:left + size[1]] = (resized > 127.5)[:canvas[0] - top, :canvas[1] - left]
    return masks


def masks_from_crops(masks, boxes, numbers, size):
    """In place of torchvision's function of this form, which reads whole masks."""
    crops, truths = masks
    pairs = zip(boxes.detach().double().cpu().numpy(), numbers.cpu())
    shares = [mask_shares(crops[n], truths[n].double().numpy(), box, size) for box, n in pairs]
    return torch.from_numpy(np.array(shares).reshape(-1, size, size)).to(boxes)


def use_first_samples():
    torch.randperm = lambda count, device=None: torch.arange(count, device=device)


def losses(model, images, sizes, targets):
    """The five losses by torchvision's names."""
    features = model.backbone(images)
    proposals, of_proposals = model.rpn(ImageList(images, sizes), features, targets)
    _, of_regions = model.roi_heads(features, proposals, sizes, targets)
    return {**of_proposals, **of_regions}


def detect(model, images, sizes):
    """Detections of each image, with masks [n, 1, M, M] on their boxes."""
    features = model.backbone(images)
    proposals, _ = model.rpn(ImageList(images, sizes), features)
    return model.roi_heads(features, proposals, sizes)[0]


def step(work, request, mixed):
    """The function of a step, and options that a reader should know. `mixed` makes the context of the precision."""
    device = torch.device(request.device)
    model = make(work).to(device, memory_format=torch.channels_last)
    options = {"threads": torch.get_num_threads(), "channels_last": True}
    if request.trains:
        return train_step(model, Feeds(work, device), work, request, mixed), dict(options, samples="the first ones")
    return infer_step(model, Feeds(work, device), work, mixed), dict(options, masks="on their boxes, not pasted")


class Feeds:
    """Batches on a device: images, their sizes, and what torchvision takes of the objects. On a GPU a step copies them there."""

    def __init__(self, work, device):
        self.device = device
        self.images = DetectorImages(work, device)
        self.sizes, self.targets = zip(*feeds_of(work))

    def __getitem__(self, batch):
        targets = [{name: self.moved(x) for name, x in target.items()} for target in self.targets[batch]]
        return self.images[batch], self.sizes[batch], targets

    def moved(self, x):
        return x.to(self.device, non_blocking=True) if torch.is_tensor(x) else x


def train_step(model, feeds, work, request, mixed):
    use_first_samples()
    if request.checks:
        # The same masks as in the work of the others, computed by NumPy; timed steps read whole masks, as users have them.
        roi_heads.project_masks_on_boxes = masks_from_crops
    canvas = work.feeds["images"].shape[2:4]
    for target in (target for targets in feeds.targets for target in targets):
        target["masks"] = (target["crops"], target["boxes"]) if request.checks else pinned(whole_masks(target, canvas), feeds.device)
    model.train()
    training = work.training
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kernels = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [{"params": kernels, "weight_decay": training.loss["l2"]}, {"params": others, "weight_decay": 0.0}]
    if training.optimizer != "sgd":
        raise Cannot(f"optimizer {training.optimizer} is not sgd")
    optimizer = fused_sgd(groups, training)
    scaler = torch.amp.GradScaler(request.device_kind, enabled=request.precision == "fp16")

    def run(batch):
        optimizer.zero_grad(set_to_none=True)
        with mixed():
            value = sum(losses(model, *feeds[batch]).values())
        scaler.scale(value).backward()
        with torch.no_grad():
            squares = torch.stack(torch._foreach_norm(kernels)).square().sum().item()
        scaler.step(optimizer)
        scaler.update()
        return value.item() + training.loss["l2"] / 2 * squares

    return run


def infer_step(model, feeds, work, mixed):
    model.eval()
    wanted = work.detection
    heads = model.roi_heads
    heads.nms_thresh, heads.score_thresh, heads.detections_per_img = wanted["overlap"], wanted["score_floor"], wanted["detections"]

    @torch.inference_mode()
    def run(batch):
        images, sizes = feeds.images[batch], feeds.sizes[batch]
        with mixed():
            found = detect(model, images, sizes)
        return named(found, wanted["detections"])

    return run


def named(found, most):
    """Arrays by the names of the protocol; rows behind the last detection are zeros."""
    def padded(tensors):
        out = np.zeros((len(tensors), most, *tensors[0].shape[1:]), np.float32)
        for rows, tensor in zip(out, tensors):
            rows[:len(tensor)] = tensor.float().cpu().numpy()
        return out
    outputs = {name: padded([image[name] for image in found]) for name in ("boxes", "scores", "labels")}
    outputs["masks"] = padded([image["masks"][:, 0] for image in found])
    outputs["count"] = np.array([len(image["boxes"]) for image in found], np.float32)
    return outputs
