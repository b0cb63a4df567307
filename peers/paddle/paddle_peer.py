"""Steps of training and inference in PaddlePaddle: eager, or a static graph, which Paddle Inference runs where nothing is trained."""

from pathlib import Path

import numpy as np
import paddle
import resnet
import text
from paddle import inference
from peer import protocol
from peer.work import OUTPUTS


class Paddle(protocol.Peer):
    framework = "paddle"
    version = paddle.__version__
    variants = [
        {"name": "eager", "fused": False, "default": True, "settings": "dygraph, oneDNN"},
        {"name": "static", "fused": True, "default": True,
         "settings": "to_static without oneDNN for training; Paddle Inference with oneDNN and all passes for inference"},
    ]
    offers = protocol.offer(["train", "infer"])

    def prepare(self, request, work):
        """The exported model of inference."""
        if request.variant == "static" and not request.trains:
            exported(make_model(work), work, request)

    def step(self, request, work):
        paddle.set_device("cpu")
        paddle.seed(request.seed)
        model = make_model(work)
        is_static = request.variant == "static"
        options = {"static": is_static, "onednn": not (is_static and request.trains)}
        if request.trains:
            return make_train_step(model, work, request), options
        make = make_predictor_step if is_static else make_infer_step
        return make(model, work, request), options


def make_model(work):
    return resnet.ResNet(work) if work.family == "resnet" else text.Text(work)


def make_train_step(model, work, request):
    model.train()
    optimizer = make_optimizer(model, work)
    batches = [[paddle.to_tensor(x) for x in feeds] for feeds in model.feeds()]
    if request.variant == "static":
        model.loss = paddle.jit.to_static(model.loss, full_graph=True, backend=None)

    def step(batch):
        value = model.loss(*batches[batch])
        value.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(value.numpy())

    return step


def make_optimizer(model, work):
    training, parameters = work.training, list(model.weights.values())
    clip = paddle.nn.ClipGradByGlobalNorm(training.clip_norm) if training.clip_norm else None
    if training.optimizer == "sgd":
        if clip:
            raise protocol.Cannot("Paddle clips the gradients of parameters with and without decay by norms of their own in SGD")
        groups = {}
        for name, parameter in model.weights.items():
            groups.setdefault(work.decay(name), []).append(parameter)
        groups = [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()]
        return paddle.optimizer.Momentum(training.lr, training.momentum, groups, training.nesterov)
    if training.optimizer != "adamw":
        raise protocol.Cannot(f"optimizer {training.optimizer} is neither sgd nor adamw")
    beta1, beta2 = training.betas
    optimizer = paddle.optimizer.AdamW(training.lr, beta1, beta2, training.eps, parameters, training.weight_decay,
                                       apply_decay_param_fun=lambda name: work.decay(name) > 0, grad_clip=clip)
    if not training.bias_correction:
        leave_uncorrected(optimizer, parameters)
    return optimizer


def leave_uncorrected(optimizer, parameters):
    """Powers of the betas are 0 from the start, as they are after very many steps."""
    optimizer._create_accumulators(paddle.base.framework.default_main_program().global_block(), parameters)
    for parameter in parameters:
        for kind in (optimizer._beta1_pow_acc_str, optimizer._beta2_pow_acc_str):
            power = optimizer._get_accumulator(kind, parameter)
            power.set_value(np.zeros(power.shape, np.float32))


def make_infer_step(model, work, _request):
    model.eval()
    batches = [[paddle.to_tensor(x) for x in feeds] for feeds in model.inputs()]

    @paddle.no_grad()
    def step(batch):
        outputs = model(*batches[batch])
        return {name: x.numpy() for name, x in zip(OUTPUTS[work.family], outputs)}

    return step


def exported(model, work, request):
    """The path of the model in the cache without its suffix; written unless it is there."""
    path = f"{request.cache}/{work.identity()}"
    if not (Path(f"{path}.json").exists() and Path(f"{path}.pdiparams").exists()):
        model.eval()
        inputs = model.inputs()[0]
        specs = [paddle.static.InputSpec(list(x.shape), str(x.dtype), name=f"input{i}") for i, x in enumerate(inputs)]
        paddle.jit.save(paddle.jit.to_static(model, full_graph=True, backend=None), path, input_spec=specs)
    return path


def make_predictor_step(model, work, request):
    path, feeds = exported(model, work, request), model.inputs()
    config = inference.Config(f"{path}.json", f"{path}.pdiparams")
    config.disable_gpu()
    config.disable_glog_info()
    config.enable_onednn()
    config.set_cpu_math_library_num_threads(request.threads)
    config.enable_memory_optim()
    config.enable_new_ir()
    config.enable_new_executor()
    predictor = inference.create_predictor(config)
    inputs = [predictor.get_input_handle(name) for name in predictor.get_input_names()]
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]

    def step(batch):
        for handle, array in zip(inputs, feeds[batch]):
            handle.copy_from_cpu(array)
        predictor.run()
        return {name: handle.copy_to_cpu() for name, handle in zip(OUTPUTS[work.family], outputs)}

    return step
