"""The package effdet's EfficientDet with the weights of the work, and what it is trained and evaluated by."""

import contextlib

import torch
from effdet import DetBenchPredict, DetBenchTrain, EfficientDet, get_efficientdet_config
from effdet.loss import loss_fn
from effdet.object_detection.box_list import BoxList
from timm.models import register_model
from timm.models.efficientnet import _gen_efficientnet

from .work import Cannot

# The network of all sizes but for their numbers.
CONFIG = "tf_efficientdet_d0"
# IoU from which the package suppresses; it has no setting for it.
OVERLAP = 0.5


@register_model
def bessemer_backbone(pretrained=False, width=1.0, depth=1.0, **options):
    """EfficientNet-B0 with scaled widths and depths."""
    return _gen_efficientnet("tf_efficientnet_b0", channel_multiplier=width, depth_multiplier=depth, pretrained=pretrained,
                             pad_type="same", **options)


def network(sizes):
    """Images [N, 3, H, W] to the logits and the deltas of all levels, each [N, anchors * K or 4, H, W]."""
    config = get_efficientdet_config(CONFIG)
    config.backbone_name = "bessemer_backbone"
    config.backbone_args = {"width": sizes.backbone_width, "depth": sizes.backbone_depth, "bn_eps": sizes.norm_eps,
                            "bn_momentum": sizes.norm_momentum}
    config.norm_kwargs = {"eps": sizes.norm_eps, "momentum": sizes.norm_momentum}
    config.image_size = (sizes.image_size, sizes.image_size)
    config.num_classes = sizes.classes
    config.fpn_channels, config.fpn_cell_repeats, config.box_class_repeats = sizes.width, sizes.cells, sizes.head_depth
    config.anchor_scale, config.num_scales = sizes.anchor_scale, sizes.anchor_octaves
    config.aspect_ratios = [tuple(aspect) for aspect in sizes.anchor_aspects]
    return EfficientDet(config, pretrained_backbone=False)


def make(work):
    model = network(work.sizes)
    weights = {name: torch.from_numpy(array) for name, array in {**work.trained_weights(), **work.statistics()}.items()}
    wrong = model.load_state_dict(weights, strict=False)
    missing = [name for name in wrong.missing_keys if not name.endswith("num_batches_tracked")]
    if missing or wrong.unexpected_keys:
        raise ValueError(f"weights: {[*missing, *wrong.unexpected_keys][0]} is in the file or in the package's model alone")
    return model


def objects(work):
    """Of each batch the boxes, y first, and the classes from 1 of its objects, -1 behind the last one."""
    return [objects_of(feeds) for feeds in work.named_feeds(["boxes", "classes", "count"])]


def objects_of(feeds):
    boxes = torch.from_numpy(feeds["boxes"])[..., [1, 0, 3, 2]].contiguous()
    classes = torch.from_numpy(feeds["classes"]).float() + 1
    is_behind = torch.arange(classes.shape[1]) >= torch.from_numpy(feeds["count"])[:, None]
    return boxes, classes.masked_fill(is_behind, -1)


@contextlib.contextmanager
def float64():
    """Anchors, targets and losses in float64, which the package computes in float32 whatever the network computes in."""
    kept = torch.Tensor.float, BoxList.__init__
    torch.Tensor.float, BoxList.__init__ = torch.Tensor.double, keep_precision
    yield
    torch.Tensor.float, BoxList.__init__ = kept


def keep_precision(self, boxes):
    """The package's list of boxes without its demand for float32; nothing else in it depends on the precision."""
    self.data = {"boxes": boxes}


def matcher(model):
    """From the objects of a batch to what `loss` takes, by the package's own matching."""
    labeler = DetBenchTrain(model).to(next(model.parameters()).device).anchor_labeler
    return lambda objects: labeler.batch_label_anchors(*objects)


def loss(work, outputs, targets):
    """Without the L2 loss."""
    numbers = work.training.loss
    total, _, _ = loss_fn(*outputs, *targets, num_classes=work.sizes.classes, alpha=numbers["alpha"], gamma=numbers["gamma"],
                          delta=numbers["delta"], box_loss_weight=numbers["box_weight"])
    return total


def detector(work, model, run):
    """From images and what `image_infos` says of them to detections [N, D, 6]: corners, score, and class from 1. `run` is the
    network, compiled or not.
    """
    wanted = work.detection
    if (wanted["suppression"], wanted["overlap"], wanted["score_floor"], wanted["clip"]) != ("hard", OVERLAP, 0, True):
        raise Cannot(f"effdet suppresses boxes that overlap by more than {OVERLAP}, and cuts them off at the image's borders")
    bench = DetBenchPredict(model).to(next(model.parameters()).device)
    bench.model, bench.max_detection_points, bench.max_det_per_image = run, wanted["candidates"], wanted["detections"]
    return bench


def image_infos(work, device):
    """Of each batch what the package is told of its images."""
    sizes = [torch.from_numpy(feeds["sizes"]).to(device) for feeds in work.named_feeds(["sizes"])]
    return [{"img_scale": torch.ones(len(batch), device=device), "img_size": batch.flip(1)} for batch in sizes]


def named(detections):
    """Arrays by the names of the protocol; rows behind the last detection are zeros."""
    found = detections.cpu().numpy()
    classes = found[..., 5]
    return {"boxes": found[..., :4], "scores": found[..., 4], "labels": classes - 1, "count": (classes > 0).sum(axis=1)}
