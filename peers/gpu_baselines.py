#!/usr/bin/env python3
"""What PyTorch reaches on this machine's GPU, for comparison: products, copies, and training steps on data that lies on
the device. Prints one JSON document; a workload that fails has a line in it instead of figures and stops no other one.

    python3 peers/gpu_baselines.py [--only resnet50] [--steps 50] > gpu_baselines.json

Needs torch; torchvision for ResNet-50 and Mask R-CNN, transformers for BERT. Numbers are random, never zeros, because
products of zeros run faster.
"""

import argparse
import json
import platform
import statistics
import sys

import torch
from torch import nn


def seconds(work, steps, warmup=10):
    """Median time of a call on the device's clock."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(steps):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times)


def graphed(work):
    """The call recorded as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def copies(steps):
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    host = torch.empty(1 << 28, pin_memory=True)
    size = source.numel() * 4
    return {
        "device_gbytes_read_and_written": 2 * size / seconds(lambda: target.copy_(source), steps) / 1e9,
        "host_to_device_gbytes": size / seconds(lambda: target.copy_(host, non_blocking=True), steps, 2) / 1e9,
        "device_to_host_gbytes": size / seconds(lambda: host.copy_(source, non_blocking=True), steps, 2) / 1e9,
    }


def products(steps):
    figures = {}
    for name, dtype, tf32 in [
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, False),
        ("tf32", torch.float32, True),
        ("fp32", torch.float32, False),
    ]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        n = 8192
        a, b = torch.randn(n, n, device="cuda", dtype=dtype), torch.randn(n, n, device="cuda", dtype=dtype)
        out = torch.empty_like(a)
        figures[f"{name}_tflops"] = 2 * n**3 / seconds(lambda: torch.mm(a, b, out=out), steps) / 1e12
    return figures


def trainer(model, batch, loss_of, dtype, optimizer):
    """A function that does one training step, with autocast where `dtype` has 16 bits."""
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def ways(build, samples, steps, with_graph):
    """Samples a second: eager, compiled, and eager as one CUDA graph."""
    figures = {}
    for way in ["eager", "compiled"] + (["graph"] if with_graph else []):
        try:
            step = build(way == "compiled")
            if way == "graph":
                step = graphed(step)
            figures[way] = samples / seconds(step, steps)
        except Exception as error:  # every failure is a result
            figures[way] = one_line(error)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    figures["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return figures


PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}


def resnet50(steps):
    import torchvision

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True

    def build(dtype, size, compiled):
        model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5, fused=True)
        run = torch.compile(model) if compiled else model
        images = torch.randn(size, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (size,), device="cuda")
        loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
        return trainer(run, (images, labels), loss, dtype, optimizer)

    figures = {}
    for name, dtype in PRECISIONS.items():
        for size in [128, 256, 400]:
            # A scaler reads its flag on the host, which a graph cannot record.
            with_graph = dtype != torch.float16
            figures[f"{name} {size}"] = ways(lambda compiled: build(dtype, size, compiled), size, steps, with_graph)
    return figures


def bert_base(steps):
    from transformers import BertConfig, BertForPreTraining

    def build(size, length, compiled):
        config = BertConfig(attn_implementation="sdpa", vocab_size=30522)
        model = BertForPreTraining(config).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
        run = torch.compile(model) if compiled else model
        ids = torch.randint(30522, (size, length), device="cuda")
        labels = torch.where(torch.rand(size, length, device="cuda") < 0.15, ids, -100)
        following = torch.randint(2, (size,), device="cuda")
        loss = lambda model, batch: model(input_ids=batch[0], labels=batch[1], next_sentence_label=batch[2]).loss
        return trainer(run, (ids, labels, following), loss, torch.bfloat16, optimizer)

    shapes = [(256, 128), (64, 384), (64, 512)]
    return {
        f"bf16 {size}x{length}": ways(lambda compiled: build(size, length, compiled), size, steps, True)
        for size, length in shapes
    }


def electra_base(steps):
    """The discriminator alone: the generator's share is that of a BERT of its size."""
    from transformers import ElectraConfig, ElectraForPreTraining

    def build(size, length, compiled):
        config = ElectraConfig(
            hidden_size=768, embedding_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
        )
        model = ElectraForPreTraining(config).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
        run = torch.compile(model) if compiled else model
        ids = torch.randint(30522, (size, length), device="cuda")
        replaced = torch.randint(2, (size, length), device="cuda")
        loss = lambda model, batch: model(input_ids=batch[0], labels=batch[1]).loss
        return trainer(run, (ids, replaced), loss, torch.bfloat16, optimizer)

    return {
        f"bf16 {size}x{length}": ways(lambda compiled: build(size, length, compiled), size, steps, True)
        for size, length in [(256, 128), (64, 512)]
    }


def mask_rcnn(steps):
    import torchvision

    def build(size, compiled):
        model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
        images = [torch.rand(3, 800, 1333, device="cuda") for _ in range(size)]
        corners = torch.rand(8, 2, device="cuda") * torch.tensor([900.0, 500.0], device="cuda")
        boxes = torch.cat([corners, corners + 200], dim=1)
        masks = (torch.rand(8, 800, 1333, device="cuda") < 0.5).to(torch.uint8)
        target = {"boxes": boxes, "labels": torch.randint(1, 91, (8,), device="cuda"), "masks": masks}
        loss = lambda model, batch: sum(model(batch, [target] * size).values())
        return trainer(torch.compile(model) if compiled else model, images, loss, torch.float16, optimizer)

    return {f"fp16 {size}": ways(lambda compiled: build(size, compiled), size, max(steps // 5, 3), False) for size in [4, 12]}


WORKLOADS = {
    "copies": copies,
    "products": products,
    "resnet50": resnet50,
    "bert-base": bert_base,
    "electra-base": electra_base,
    "maskrcnn-r50": mask_rcnn,
}


def one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=WORKLOADS, action="append", help="this workload; may be given several times")
    parser.add_argument("--steps", type=int, default=50, help="steps whose median counts")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: PyTorch sees no GPU")
    properties = torch.cuda.get_device_properties(0)
    report = {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "workloads": {},
    }
    for name in arguments.only or WORKLOADS:
        try:
            report["workloads"][name] = WORKLOADS[name](arguments.steps)
        except Exception as error:  # every failure is a result
            report["workloads"][name] = one_line(error)
        torch.cuda.empty_cache()
        print(f"{name}: done", file=sys.stderr)
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
