"""Steps of training and inference in OneFlow: eager, or a static graph."""

import oneflow as flow
import resnet
import text
from peer import protocol
from peer.work import OUTPUTS


class OneFlow(protocol.Peer):
    framework = "oneflow"
    version = flow.__version__
    variants = [
        {"name": "eager", "fused": False, "default": True, "settings": "one product for queries, keys and values"},
        {"name": "graph", "fused": True, "default": True, "settings": "the same in nn.Graph, with the optimizer in the graph"},
    ]
    offers = protocol.offer(["train", "infer"])

    def prepare(self, request, work):
        """Nothing of it is kept."""

    def step(self, request, work):
        flow.set_num_threads(request.threads)
        flow.manual_seed(request.seed)
        model = resnet.ResNet(work) if work.family == "resnet" else text.Text(work)
        is_graph = request.variant == "graph"
        make = make_train_step if request.trains else make_infer_step
        return make(model, work, is_graph), {"graph": is_graph}


def tensors(feeds):
    return [[flow.tensor(array) for array in batch] for batch in feeds]


def make_train_step(model, work, is_graph):
    model.train()
    optimizer, batches, limit = make_optimizer(model, work, is_graph), tensors(model.feeds()), work.training.clip_norm
    parameters = list(model.parameters())

    class Step(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, *feeds):
            loss = self.model(*feeds)
            loss.backward()
            return loss

    def eager(*feeds):
        optimizer.zero_grad(set_to_none=True)
        loss = model(*feeds)
        loss.backward()
        if limit:
            flow.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        return loss

    model.forward = model.loss
    run = Step() if is_graph else eager
    return lambda batch: float(run(*batches[batch]).numpy())


def make_optimizer(model, work, is_graph):
    training, groups = work.training, {}
    for name, parameter in model.weights.items():
        groups.setdefault(work.decay(name), []).append(parameter)
    if is_graph and training.clip_norm and len(groups) > 1:
        raise protocol.Cannot("nn.Graph clips the gradients of parameters with and without decay by norms of their own")
    clip = {"clip_grad_max_norm": training.clip_norm, "clip_grad_norm_type": 2.0} if is_graph and training.clip_norm else {}
    groups = [dict(clip, params=parameters, weight_decay=decay) for decay, parameters in groups.items()]
    if training.optimizer == "sgd":
        return flow.optim.SGD(groups, lr=training.lr, momentum=training.momentum, nesterov=training.nesterov)
    if training.optimizer != "adamw":
        raise protocol.Cannot(f"optimizer {training.optimizer} is neither sgd nor adamw")
    return flow.optim.AdamW(groups, lr=training.lr, betas=tuple(training.betas), eps=training.eps,
                            do_bias_correction=training.bias_correction)


def make_infer_step(model, work, is_graph):
    model.eval()
    batches = tensors(model.inputs())

    class Forward(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, *inputs):
            return self.model(*inputs)

    run = Forward() if is_graph else model

    def step(batch):
        with flow.no_grad():
            outputs = run(*batches[batch])
        return {name: x.numpy() for name, x in zip(OUTPUTS[work.family], outputs)}

    return step
