"""Steps of training and inference in PyTorch, eager and compiled."""

import contextlib

import torch
import torch._dynamo
import torch._inductor.config
from peer import protocol, torch_resnet, torch_text
from peer.torch_images import DetectorImages, Images, pinned
from peer.torch_sgd import fused_sgd
from peer.work import DETECTIONS, INPUTS, NETWORK, channels_behind
from torch.nn import functional as F

NEVER_CORRECTED = 1e9
# Families that take images; of these, norms stay in fp32 in 16 bits.
IMAGES = ("resnet", "efficientdet", "mask-rcnn")
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
# What the inference of detectors can end with.
ENDS = {"efficientdet": [DETECTIONS, NETWORK], "mask-rcnn": [DETECTIONS]}


def gpu_offers():
    if not torch.cuda.is_available():
        return []
    return protocol.offer(["train", "infer"], ["fp32", "bf16", "fp16"], detectors=ENDS, device="cuda")


class PyTorch(protocol.Peer):
    framework = "pytorch"
    version = torch.__version__.split("+")[0]
    variants = [
        {"name": "eager", "fused": False, "default": True,
         "settings": "channels last, fused optimizer, one product for queries, keys and values, scaled_dot_product_attention"},
        {"name": "compile", "fused": True, "default": True,
         "settings": "the same in torch.compile, weights frozen for inference"},
        {"name": "graphs", "fused": True, "default": False,
         "settings": "torch.compile with mode reduce-overhead, which replays CUDA graphs on GPUs"},
    ]
    offers = gpu_offers() + protocol.offer(["train", "infer"], detectors=ENDS, **protocol.bf16_in_software())

    def peak_memory_bytes(self, request):
        return super().peak_memory_bytes(request) if request.device == "cpu" else torch.cuda.max_memory_reserved()

    def step(self, request, work):
        torch.set_num_threads(request.threads)
        torch.manual_seed(request.seed)
        # fp32 is computed as such by all frameworks; convolutions of images of one size are worth a search.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        is_compiled = request.variant != "eager"
        if work.family == "mask-rcnn":
            if is_compiled:
                raise protocol.Cannot("torch.compile breaks torchvision's Mask R-CNN into pieces of a few operations")
            return masks().step(work, request, lambda: mixed(request))
        torch._inductor.config.freezing = is_compiled and not request.trains
        make = {True: make_train_step, False: make_infer_step}[request.trains]
        step = make(*model_and_feeds(work, torch.device(request.device)), work, request, compiler(request))
        options = {"compile": is_compiled, "threads": torch.get_num_threads()}
        if work.family in IMAGES:
            options["channels_last"] = True
        if is_compiled:
            options.update({name: getattr(torch._inductor.config, name) for name in ("freezing", "max_autotune")})
        return step, options


def compiler(request):
    """From a function to one that runs it in the way of the variant."""
    if request.variant == "eager":
        return lambda run: run
    mode = "reduce-overhead" if request.variant == "graphs" else "default"
    return lambda run: torch.compile(run, mode=mode)


def model_and_feeds(work, device):
    """The model, and a function from the number of a batch to its inputs and what `loss` takes. On a GPU a step copies them there."""
    def moved(tensors):
        return tuple(x.to(device, non_blocking=True) for x in tensors)

    if work.family == "efficientdet":
        images, targets = DetectorImages(work, device), detector().objects(work)
        model = detector().make(work).to(device, memory_format=torch.channels_last)
        return model, lambda batch: ((images[batch],), moved(targets[batch]))
    if work.family == "resnet":
        images, targets = Images(work, device), [torch.from_numpy(labels).long() for labels in work.labels()]
        model = torch_resnet.make(work).to(device, memory_format=torch.channels_last)
        return model, lambda batch: ((images[batch],), *moved([targets[batch]]))
    feeds = [{name: torch.from_numpy(array) for name, array in feeds.items()} for feeds in work.named_feeds()]
    feeds = [{name: pinned(x if x.is_floating_point() else x.long(), device) for name, x in batch.items()} for batch in feeds]

    def fetch(batch):
        found = {name: x.to(device, non_blocking=True) for name, x in feeds[batch].items()}
        return tuple(found[name] for name in INPUTS[work.family]), found

    return torch_text.make(work).to(device), fetch


def detector():
    """Of the package `effdet`, which the other models do not need in memory."""
    from peer import torch_efficientdet
    return torch_efficientdet


def masks():
    """torchvision's Mask R-CNN."""
    from peer import torch_maskrcnn
    return torch_maskrcnn


def mixed(request):
    """Autocast to the precision of the request."""
    low = LOW.get(request.precision)
    return torch.autocast(request.device_kind, dtype=low or torch.bfloat16, enabled=low is not None)


def make_train_step(model, fetch, work, request, compiled):
    model.train()
    parameters, optimizer = list(model.parameters()), make_optimizer(model, work)
    scaler = torch.amp.GradScaler(request.device_kind, enabled=request.precision == "fp16")

    def forward(inputs, targets):
        with mixed(request):
            logits = model(*inputs)
        return loss(work, logits, targets)

    run = compiled(forward)
    match = detector().matcher(model) if work.family == "efficientdet" else lambda targets: targets

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = fetch(batch)
        value = run(inputs, match(targets))
        scaler.scale(value).backward()
        if work.training.clip_norm:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, work.training.clip_norm)
        decay = l2_loss(work, parameters)
        scaler.step(optimizer)
        scaler.update()
        return value.item() + decay

    return step


def l2_loss(work, parameters):
    """What the loss of a detector has beside that of the outputs; its gradients are the optimizer's weight decay."""
    if not l2_factor(work):
        return 0.0
    with torch.no_grad():
        norms = torch._foreach_norm([parameter for parameter in parameters if parameter.ndim > 1])
        return l2_factor(work) / 2 * torch.stack(norms).square().sum().item()


def l2_factor(work):
    return work.training.loss["l2"] if work.family == "efficientdet" else 0.0


def loss(work, logits, targets):
    if work.family == "resnet":
        return F.cross_entropy(logits.float(), targets, label_smoothing=work.training.label_smoothing)
    if work.family == "efficientdet":
        return detector().loss(work, logits, targets)
    return torch_text.loss(work.family, logits, targets)


def make_optimizer(model, work):
    training = work.training
    groups = {}
    for name, parameter in model.named_parameters():
        decay = work.decay(name) + (l2_factor(work) if parameter.ndim > 1 else 0.0)
        groups.setdefault(decay, []).append(parameter)
    groups = [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()]
    if training.optimizer == "sgd":
        return fused_sgd(groups, training)
    if training.optimizer != "adamw" or l2_factor(work):
        raise protocol.Cannot(f"optimizer {training.optimizer} is neither sgd nor adamw, or has no L2 loss")
    optimizer = torch.optim.AdamW(groups, lr=training.lr, betas=tuple(training.betas), eps=training.eps, fused=True)
    if not training.bias_correction:
        leave_uncorrected(optimizer)
    return optimizer


def leave_uncorrected(optimizer):
    """So many steps that the corrections `1 - beta^t` are 1 seem to be done."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = torch.tensor(NEVER_CORRECTED, device=parameter.device)
            optimizer.state[parameter] = {"step": step, "exp_avg": torch.zeros_like(parameter),
                                          "exp_avg_sq": torch.zeros_like(parameter)}


def make_infer_step(model, fetch, work, request, compiled):
    model.eval()
    low = LOW.get(request.precision)
    if low:
        cast_weights(model, work, low)
    run = compiled(model)
    if work.ends_with() == DETECTIONS:
        detect = detector().detector(work, model, run)
        infos = detector().image_infos(work, torch.device(request.device))

    @torch.inference_mode()
    def step(batch):
        inputs, _ = fetch(batch)
        with mixed(request) if work.family in IMAGES else contextlib.nullcontext():
            if work.ends_with() == DETECTIONS:
                return detector().named(detect(*inputs, infos[batch]))
            outputs = run(*inputs)
        outputs = flat(outputs)
        return channels_behind({name: x.float().cpu().numpy() for name, x in zip(work.output_names(), outputs)})

    return step


def flat(outputs):
    """Tensors of lists in lists, in order."""
    return [x for part in outputs for x in flat(part)] if isinstance(outputs, (tuple, list)) else [outputs]


def cast_weights(model, work, low):
    """To 16 bits: all of a text model, and of one for images what autocast would cast in every step, which are not the norms."""
    if work.family not in IMAGES:
        model.to(low)
        return
    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.to(low)
