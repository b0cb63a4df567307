"""Writes a work folder as Bessemer does, with weights and batches of its own, for `peers/check.py`.

    python make_work.py OUT MODEL train|infer [--batch-size N] [--network]

The weights are such that scores and logits spread over a unit and all parameters count. Some sequences end in padding, and some
words do not count.
"""

import argparse
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from peer import safetensors
from peer.work import family_of

BATCHES = 2
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
ADAMW = {"optimizer": "adamw", "lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01,
         "decay_exclude": "layer_norm_and_bias", "label_smoothing": 0.0, "clip_norm": 1.0, "dropout": 0.1}
SGD = {"optimizer": "sgd", "lr": 0.001, "momentum": 0.875, "nesterov": False, "weight_decay": 2**-15,
       "decay_exclude": "batch_norm", "label_smoothing": 0.1, "clip_norm": None, "dropout": 0.0}
LOSS = {"alpha": 0.25, "gamma": 1.5, "delta": 0.1, "box_weight": 50.0, "l2": 4e-5}
USUAL = {"resnet": SGD, "bert": dict(ADAMW, bias_correction=False), "electra": dict(ADAMW, bias_correction=True),
         "efficientdet": dict(SGD, momentum=0.9, weight_decay=0.0, decay_exclude="none", label_smoothing=0.0, loss=LOSS)}
# Pixels; the smallest reference box has 32.
LEAST_OBJECT = 45
DETECTION = {"candidates": 1000, "suppression": "hard", "overlap": 0.5, "score_floor": 0.0, "detections": 100, "clip": True}


def encoder(layers, hidden, vocabulary, length, act, **more):
    return dict({
        "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "hidden_act": act, "sequence_length": length,
    }, **more)


def detector(image_size, classes, backbone_width, backbone_depth, width, cells, head_depth):
    return {"image_size": image_size, "classes": classes, "max_objects": 20, "backbone_width": backbone_width,
            "backbone_depth": backbone_depth, "width": width, "cells": cells, "head_depth": head_depth, "norm_eps": 1e-3,
            "norm_momentum": 0.01, "anchor_scale": 4.0, "anchor_octaves": 3,
            "anchor_aspects": [[1.0, 1.0], [1.4, 0.7], [0.7, 1.4]]}


SIZES = {
    "resnet50": {"image_size": 224, "classes": 1000, "block": "bottleneck", "layers": [3, 4, 6, 3]},
    "resnet50-small": {"image_size": 64, "classes": 100, "block": "bottleneck", "layers": [1, 2, 1, 1]},
    "bert-base": encoder(12, 768, 30_522, 128, "gelu", predictions=20),
    "bert-tiny": encoder(2, 128, 1_000, 32, "gelu_new", predictions=5),
    "electra-base-squad": encoder(12, 768, 30_522, 384, "gelu", embedding_size=768),
    "electra-mini-squad": encoder(4, 256, 1_000, 48, "gelu", embedding_size=128),
    "efficientdet-d0": detector(512, 91, 1.0, 1.0, 64, 3, 3),
    "efficientdet-small": detector(128, 10, 0.25, 0.3, 16, 2, 2),
}


def resnet_shapes(sizes):
    """Shapes by torchvision's names."""
    shapes = {"conv1.weight": (64, 3, 7, 7)}

    def norm(name, width):
        shapes.update({f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")})

    norm("bn1", 64)
    inputs = 64
    for stage, count in enumerate(sizes["layers"]):
        width = 64 << stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            convolutions = [(width, inputs, 1), (width, width, 3), (4 * width, width, 1)]
            for index, (outputs, channels, side) in enumerate(convolutions, 1):
                shapes[f"{name}.conv{index}.weight"] = (outputs, channels, side, side)
                norm(f"{name}.bn{index}", outputs)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (4 * width, inputs, 1, 1)
                norm(f"{name}.downsample.1", 4 * width)
            inputs = 4 * width
    return dict(shapes, **{"fc.weight": (sizes["classes"], inputs), "fc.bias": (sizes["classes"],)})


def text_shapes(family, sizes):
    """Shapes by Hugging Face's names."""
    hidden, wide, shapes = sizes["hidden_size"], sizes["intermediate_size"], {}
    embedding = sizes.get("embedding_size", hidden)

    def norm(name, width):
        shapes.update({f"{name}.LayerNorm.weight": (width,), f"{name}.LayerNorm.bias": (width,)})

    def linear(name, inputs, outputs):
        shapes.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    for table, rows in tables.items():
        shapes[f"{family}.embeddings.{table}_embeddings.weight"] = (sizes[rows], embedding)
    norm(f"{family}.embeddings", embedding)
    if embedding != hidden:
        linear(f"{family}.embeddings_project", embedding, hidden)
    for index in range(sizes["num_hidden_layers"]):
        layer = f"{family}.encoder.layer.{index}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output", hidden)
        linear(f"{layer}.intermediate.dense", hidden, wide)
        linear(f"{layer}.output.dense", wide, hidden)
        norm(f"{layer}.output", hidden)
    if family == "electra":
        linear("qa_outputs", hidden, 2)
        return shapes
    linear("bert.pooler.dense", hidden, hidden)
    linear("cls.predictions.transform.dense", hidden, hidden)
    norm("cls.predictions.transform", hidden)
    shapes["cls.predictions.bias"] = (sizes["vocab_size"],)
    linear("cls.seq_relationship", hidden, 2)
    return shapes


def detector_shapes(sizes):
    """Shapes by the names of the package effdet."""
    from peer import torch_efficientdet
    tensors = torch_efficientdet.network(SimpleNamespace(**sizes)).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor.is_floating_point()}


def initial(name, shape, random):
    """The last batch norm of each block has small scales, which keep sums from growing from block to block."""
    values = random.standard_normal(shape, dtype=np.float32)
    if name.endswith("running_var"):
        return 1 + 0.2 * np.abs(values)
    if len(shape) > 1:
        spread = 2.0 if len(shape) == 4 else 1.0
        return values * np.float32((spread / np.prod(shape[1:])) ** 0.5)
    is_scale = name.endswith((".weight", ".edge_weights"))
    if "bn3" in name and is_scale:
        return np.float32(0.2) + np.float32(0.02) * values
    return np.float32(is_scale) + np.float32(0.1) * values


def resnet_batches(sizes, batch, random):
    side = sizes["image_size"]
    blots = random.integers(0, 256, (BATCHES, batch, 8, 8, 3), dtype=np.uint8)
    repeated = blots.repeat(side // 8, axis=2).repeat(side // 8, axis=3)
    noise = random.integers(0, 32, (BATCHES, batch, side, side, 3), dtype=np.uint8)
    return {"images": repeated // 2 + noise, "labels": random.integers(0, sizes["classes"], (BATCHES, batch), dtype=np.int32)}


def detector_batches(sizes, batch, random):
    """Images that fill their canvas or a part of it, with none, some or all of the objects that there can be. None lies within several
    reference boxes, of which rounding would choose.
    """
    side, most = sizes["image_size"], sizes["max_objects"]
    low = 0.35 * side * random.random((BATCHES, batch, most, 2), dtype=np.float32)
    extent = LEAST_OBJECT + (0.4 * side - LEAST_OBJECT) * random.random((BATCHES, batch, most, 1), dtype=np.float32)
    extent = extent * (0.8 + 0.2 * random.random((BATCHES, batch, most, 2), dtype=np.float32))
    boxes = np.concatenate([low, low + extent], axis=-1).astype(np.float32)
    count = np.broadcast_to(np.arange(batch) * most // max(batch - 1, 1), (BATCHES, batch)).astype(np.int32)
    return {"images": resnet_batches(sizes, batch, random)["images"], "boxes": boxes, "count": count,
            "sizes": random.integers(side * 3 // 4, side + 1, (BATCHES, batch, 2)).astype(np.float32),
            "classes": random.integers(0, sizes["classes"], (BATCHES, batch, most), dtype=np.int32)}


def text_batches(family, sizes, batch, random):
    length = sizes["sequence_length"]

    def below(limit, *shape):
        return random.integers(0, limit, (BATCHES, batch) + shape, dtype=np.int32)

    lengths = length - (np.arange(batch) % 4) * (length // 5)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    feeds = {"input_ids": below(sizes["vocab_size"], length), "segment_ids": below(2, length),
             "input_mask": np.broadcast_to(mask, (BATCHES, batch, length)).copy()}
    if family == "electra":
        return dict(feeds, start_positions=below(length // 4), end_positions=below(length // 4))
    predictions = sizes["predictions"]
    weights = np.ones((BATCHES, batch, predictions), np.float32)
    weights[:, -1, predictions // 2:] = 0
    return dict(feeds, masked_lm_positions=below(length // 4, predictions), masked_lm_ids=below(sizes["vocab_size"], predictions),
                masked_lm_weights=weights, next_sentence_labels=below(2))


def settled(sizes, weights, images):
    """Weights of a detector whose norms have the statistics of a batch, without which activations fade from layer to layer."""
    import torch
    from peer import torch_efficientdet
    model = torch_efficientdet.network(SimpleNamespace(**sizes)).train()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(torch.from_numpy((images.astype(np.float32) - np.float32(MEAN)) / np.float32(STD)).permute(0, 3, 1, 2))
    tensors = model.state_dict()
    return {name: tensors[name].numpy() for name in weights}


def write(folder, model, mode, batch_size, seed=0, is_network=False, **training):
    """`training` replaces settings. The inference of a detector ends with the outputs of the network where `is_network`."""
    folder, family, sizes = Path(folder), family_of(model), SIZES[model]
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    if family == "resnet":
        shapes, batches = resnet_shapes(sizes), resnet_batches(sizes, batch_size, random)
    elif family == "efficientdet":
        shapes, batches = detector_shapes(sizes), detector_batches(sizes, batch_size, random)
    else:
        shapes, batches = text_shapes(family, sizes), text_batches(family, sizes, batch_size, random)
    weights = {name: initial(name, shape, random) for name, shape in shapes.items()}
    if family == "efficientdet":
        weights = settled(sizes, weights, batches["images"][0])
    safetensors.save(folder / "weights.safetensors", weights)
    safetensors.save(folder / "batches.safetensors", batches)
    work = {"protocol": 1, "model": model, "mode": mode, "batch_size": batch_size, "batches": BATCHES,
            "weights": hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()[:16], "sizes": sizes,
            "normalise": {"mean": MEAN, "std": STD}, "training": dict(USUAL[family], **training)}
    if family == "efficientdet" and mode == "infer" and not is_network:
        work["detection"] = DETECTION
    (folder / "work.json").write_text(json.dumps(work, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("model", choices=list(SIZES))
    parser.add_argument("mode", choices=["train", "infer"])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--network", action="store_true", help="inference of a detector without suppression")
    args = parser.parse_args()
    write(args.out, args.model, args.mode, args.batch_size, args.seed, args.network)


if __name__ == "__main__":
    main()
