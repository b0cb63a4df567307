"""Steps of training and inference in TensorFlow: one graph each, run by oneDNN's kernels or compiled by XLA.

In bf16 the weights are cast in the step of training, and once for inference; batch norms, scores, losses and optimizers are in
float32.
"""

import optimizers
import resnet
import tensorflow as tf
import text
from peer import protocol
from peer.work import OUTPUTS
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16}


class TensorFlow(protocol.Peer):
    framework = "tensorflow"
    version = tf.__version__
    variants = [
        {"name": "graph", "fused": False, "default": True,
         "settings": "tf.function, oneDNN, channels last, weights frozen for inference, fused optimizer kernels"},
        {"name": "xla", "fused": True, "default": True, "settings": "tf.function compiled by XLA, channels last"},
    ]
    offers = protocol.offer(["train", "infer"], **protocol.bf16_in_software())

    def prepare(self, request, work):
        """Nothing of it is kept."""

    def step(self, request, work):
        tf.config.threading.set_intra_op_parallelism_threads(request.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.random.set_seed(request.seed)
        model = resnet if work.family == "resnet" else text
        is_compiled = request.variant == "xla"
        make = make_train_step if request.trains else make_infer_step
        return make(model, work, DTYPES[request.precision], is_compiled), {"xla": is_compiled, "onednn": not is_compiled}


def make_train_step(model, work, dtype, is_compiled):
    weights, statistics = ({name: tf.Variable(array) for name, array in tensors.items()}
                           for tensors in model.parameters(work))
    optimizer = optimizers.of(work, weights)
    batches = [tf.nest.map_structure(tf.constant, feeds) for feeds in model.feeds(work, dtype)]

    @tf.function(jit_compile=is_compiled)
    def update(feeds):
        with tf.GradientTape() as tape:
            p = {name: tf.cast(weight, dtype) for name, weight in weights.items()}
            loss = model.loss(work, p, statistics, feeds)
        names = list(weights)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, [weights[name] for name in names])]
        if work.training.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, work.training.clip_norm)
        optimizer.update(dict(zip(names, gradients)))
        return loss

    return lambda batch: float(update(batches[batch]).numpy())


def make_infer_step(model, work, dtype, is_compiled):
    weights, statistics = model.parameters(work)
    weights = {name: tf.Variable(tf.cast(array, dtype)) for name, array in weights.items()}
    statistics = {name: tf.Variable(array) for name, array in statistics.items()}
    batches = [tf.nest.map_structure(tf.constant, feeds) for feeds in model.feeds(work, dtype)]

    @tf.function(jit_compile=is_compiled)
    def forward(feeds):
        p, running = ({name: tf.convert_to_tensor(x) for name, x in tensors.items()} for tensors in (weights, statistics))
        return [tf.cast(x, tf.float32) for x in model.infer(work, p, running, feeds)]

    run = forward if is_compiled else frozen(forward, batches[0])
    return lambda batch: {name: x.numpy() for name, x in zip(OUTPUTS[work.family], run(batches[batch]))}


def frozen(forward, feeds):
    """The function with variables as constants, which lets graphs be rewritten into fewer kernels."""
    concrete = convert_variables_to_constants_v2(forward.get_concrete_function(feeds))
    return lambda feeds: concrete(*tf.nest.flatten(feeds))
