"""Steps of training and inference in MXNet: one symbolic graph each, run by oneDNN's kernels."""

import mxnet as mx
import optimizers
import resnet
import text
from peer import protocol
from peer.work import OUTPUTS


class MxNet(protocol.Peer):
    framework = "mxnet"
    version = mx.__version__
    variants = [
        {"name": "plain", "fused": False, "default": False, "settings": "symbolic graph, oneDNN, optimizer kernels for many tensors"},
        {"name": "fused", "fused": True, "default": True, "settings": "the same, with oneDNN's fused subgraphs for inference"},
    ]
    offers = protocol.offer(["train", "infer"])

    def prepare(self, request, work):
        """Nothing of it is kept."""

    def step(self, request, work):
        mx.random.seed(request.seed)
        model = resnet if work.family == "resnet" else text
        make = make_train_step if request.trains else make_infer_step
        return make(model, work), {"subgraphs": request.variant == "fused" and not request.trains, "onednn": True}


def nd(arrays):
    return {name: mx.nd.array(array, dtype="float32") for name, array in arrays.items()}


def make_train_step(model, work):
    weights, statistics = map(nd, model.parameters(work))
    gradients = {name: mx.nd.zeros(weight.shape) for name, weight in weights.items()}
    batches = [nd(feeds) for feeds in model.feeds(work)]
    arrays = dict(weights, **{name: mx.nd.zeros(x.shape) for name, x in batches[0].items()})
    loss = mx.sym.MakeLoss(model.loss(work))
    required = {name: "write" if name in weights else "null" for name in arrays}
    executor = loss.bind(mx.cpu(), arrays, args_grad=gradients, grad_req=required, aux_states=statistics)
    optimizer = optimizers.of(work, weights, gradients)

    def step(batch):
        value, = executor.forward(is_train=True, **batches[batch])
        executor.backward()
        optimizer.update()
        mx.nd.waitall()
        return float(value.asscalar())

    return step


def make_infer_step(model, work):
    weights, statistics = map(nd, model.parameters(work))
    batches = [nd(feeds) for feeds in model.inputs(work)]
    outputs = mx.sym.Group(list(model.outputs(work)))
    arrays = dict(weights, **{name: mx.nd.zeros(x.shape) for name, x in batches[0].items()})
    known = {name: array for name, array in arrays.items() if name in outputs.list_arguments()}
    executor = outputs.bind(mx.cpu(), known, grad_req="null", aux_states=statistics)

    def step(batch):
        results = executor.forward(is_train=False, **batches[batch])
        return {name: x.asnumpy() for name, x in zip(OUTPUTS[work.family], results)}

    return step
