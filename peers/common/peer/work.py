"""The work folder: sizes, training, weights by name, batches."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from . import safetensors

# The model of each family that stands for it in `describe`.
FAMILIES = {"resnet": "resnet50", "bert": "bert-base", "electra": "electra-base-squad", "efficientdet": "efficientdet-d0",
            "mask-rcnn": "mask-rcnn"}
# Families whose inference ends with detections, or with what they are made of.
DETECTORS = ("efficientdet", "mask-rcnn")
# What the inference of a detector ends with.
DETECTIONS, NETWORK = "detections", "network"
# The finest level of a detector, and the one behind the coarsest.
LEVELS = range(3, 8)
# What the forward pass of a text model reads, i32 [N, S] but for the last, i32 [N, P].
INPUTS = {"bert": ["input_ids", "segment_ids", "input_mask", "masked_lm_positions"],
          "electra": ["input_ids", "segment_ids", "input_mask"]}
OUTPUTS = {"resnet": ["logits"], "bert": ["mlm_logits", "nsp_logits"], "electra": ["start_logits", "end_logits"]}
# Added to scores of attention to what is padding.
MASKED_SCORE = -10_000.0
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_tanh")
# Names without weight decay contain one of these; batch norms in ResNet's shortcuts are `downsample.1`.
NOT_DECAYED = {"none": (), "bn_substring": ("bn",), "batch_norm": ("bn", "downsample.1"),
               "batch_norm_and_bias": ("bn", "downsample.1", "bias"),
               "layer_norm_and_bias": ("bias", "gamma", "beta", "LayerNorm")}


class Cannot(Exception):
    """Something that is known to be impossible here."""


def family_of(model):
    for family in FAMILIES:
        if model.startswith(family) and (family != "electra" or model.endswith("-squad")):
            return family
    raise Cannot(f"{model} is none of the models that peers know: {', '.join(FAMILIES.values())} and their like")


class Work:
    """`sizes` and `training` have the fields of `work.json`; `dropout` is 0 unless `is_dropped`."""

    def __init__(self, folder, is_dropped=True):
        folder = Path(folder)
        known = json.loads((folder / "work.json").read_text())
        self.folder, self.model, self.family = folder, known["model"], family_of(known["model"])
        self.mode, self.batch_size, self.batches = known["mode"], known["batch_size"], known["batches"]
        self.sizes = SimpleNamespace(**known["sizes"])
        self.training = SimpleNamespace(**known.get("training") or {})
        self.normalise, self.weights_hash = known.get("normalise"), known["weights"]
        self.detection = known.get("detection")
        self.dropout = getattr(self.training, "dropout", 0.0) if is_dropped and self.mode == "train" else 0.0
        if getattr(self.sizes, "block", "bottleneck") != "bottleneck":
            raise Cannot(f"{self.model}: peers know ResNets of bottlenecks, not of {self.sizes.block} blocks")
        self.weights = safetensors.load(folder / "weights.safetensors")
        self.feeds = safetensors.load(folder / "batches.safetensors")

    def check(self, request):
        """That this is the folder of the request."""
        for name in ("model", "mode", "batch_size"):
            if getattr(self, name) != getattr(request, name):
                raise ValueError(f"{self.folder}: {name} is {getattr(self, name)}, not {getattr(request, name)}")

    def images(self):
        """Normalised pictures f32 [N, H, W, 3] of each batch, zero outside of a detector's images."""
        mean, std = (np.asarray(self.normalise[name], np.float32) for name in ("mean", "std"))
        batches = [(images.astype(np.float32) - mean) / std for images in self.feeds["images"]]
        for images, sizes in zip(batches, self.feeds.get("sizes", ())):
            for image, (height, width) in zip(images, sizes.astype(int)):
                image[height:], image[:, width:] = 0, 0
        return batches

    def pixels(self):
        """Pictures u8 [N, H, W, 3] of each batch, as they are in the file."""
        return [np.array(images) for images in self.feeds["images"]]

    def labels(self):
        """i32 [N] of each batch."""
        return [np.array(labels) for labels in self.feeds["labels"]]

    def named_feeds(self, names=None):
        """Copies of the arrays of each batch by name: all, or these."""
        return [{name: np.array(self.feeds[name][batch]) for name in names or self.feeds} for batch in range(self.batches)]

    def ends_with(self):
        """What the inference of a detector ends with; `None` for other models."""
        if self.family in DETECTORS and self.mode == "infer":
            return DETECTIONS if self.detection else NETWORK
        return None

    def output_names(self):
        """Of what a network gives, in the order in which it does."""
        if self.family == "efficientdet":
            return [f"{part}.{level}" for part in ("classes", "boxes") for level in LEVELS]
        return OUTPUTS[self.family]

    def inputs(self):
        """What the forward pass of a text model reads, of each batch."""
        return self.named_feeds(INPUTS[self.family])

    def decay(self, name):
        """Weight decay of a parameter."""
        excluded = NOT_DECAYED[self.training.decay_exclude]
        return 0.0 if any(part in name for part in excluded) else self.training.weight_decay

    def is_tanh_gelu(self):
        act = self.sizes.hidden_act
        if act != "gelu" and act not in TANH_GELU:
            raise Cannot(f"hidden_act {act} is none of gelu, {', '.join(TANH_GELU)}")
        return act != "gelu"

    def head_width(self):
        return self.sizes.hidden_size // self.sizes.num_attention_heads

    def projects_embeddings(self):
        return self.family == "electra" and self.sizes.embedding_size != self.sizes.hidden_size

    def embedding_size(self):
        return self.sizes.embedding_size if self.family == "electra" else self.sizes.hidden_size

    def trained_weights(self):
        """Parameters, copied, in the layouts of the file; without running statistics and counters."""
        return {name: np.array(array) for name, array in self.weights.items() if not is_statistic(name)}

    def statistics(self):
        """Running statistics of batch norms, copied."""
        return {name: np.array(array) for name, array in self.weights.items()
                if is_statistic(name) and not name.endswith("num_batches_tracked")}

    def fused_weights(self, is_transposed):
        """Parameters of a text model, copied: queries, keys and values of a layer are the rows of one,
        `...attention.self.projections`, in this order. Where `is_transposed`, weights of layers are [inputs, outputs].
        """
        arrays = dict(self.weights)
        for layer in range(self.sizes.num_hidden_layers):
            attention = f"{self.family}.encoder.layer.{layer}.attention.self"
            for kind in ("weight", "bias"):
                parts = [arrays.pop(f"{attention}.{part}.{kind}") for part in ("query", "key", "value")]
                arrays[f"{attention}.projections.{kind}"] = np.concatenate(parts)
        tables = ("embeddings.weight", "LayerNorm.weight")
        return {name: np.ascontiguousarray(array.T) if is_transposed and array.ndim == 2 and not name.endswith(tables)
                else np.array(array) for name, array in arrays.items()}

    def identity(self):
        """Of the weights and sizes, for the names of files that are made of them."""
        sizes = "-".join(str(value).replace("/", "_") for value in vars(self.sizes).values() if not isinstance(value, list))
        return f"{self.model}-b{self.batch_size}-{sizes}-{self.weights_hash}"


def channels_behind(outputs):
    """Outputs by name, those of levels as [N, H, W, channels] in place of [N, channels, H, W]: views."""
    return {name: array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for name, array in outputs.items()}


def is_statistic(name):
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def write_outputs(path, outputs):
    """`outputs` are those of each batch by name."""
    safetensors.save(path, {name: np.stack([batch[name] for batch in outputs]).astype(np.float32) for name in outputs[0]})
