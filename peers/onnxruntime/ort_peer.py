"""Steps of inference in ONNX Runtime: the batch size fixed before graphs are optimised, inputs and outputs bound to memory made
beforehand.
"""

import numpy as np
import onnxruntime as ort
from peer import onnx_file, protocol
from peer.work import NETWORK, channels_behind

LEVELS = {"none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL, "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL}


class OnnxRuntime(protocol.Peer):
    framework = "onnxruntime"
    version = ort.__version__
    variants = [
        {"name": "none", "fused": False, "default": False, "settings": "no graph optimisations, bound memory"},
        {"name": "all", "fused": True, "default": True, "settings": "all graph optimisations, bound memory"},
    ]
    offers = protocol.offer(["infer"], detectors={"efficientdet": [NETWORK]})

    def prepare(self, request, work):
        onnx_file.made(work, request.cache)

    def step(self, request, work):
        session = make_session(onnx_file.made(work, request.cache), request)
        shapes = onnx_file.output_shapes(work)
        bindings = [bind(session, feeds, shapes) for feeds in onnx_file.inputs(work)]

        def step(batch):
            binding, outputs = bindings[batch]
            session.run_with_iobinding(binding)
            return channels_behind(outputs)

        return step, {"graph_optimization": request.variant, "io_binding": True}


def make_session(path, request):
    """With the dimension `batch` fixed."""
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[request.variant]
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.add_free_dimension_override_by_name("batch", request.batch_size)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def bind(session, feeds, shapes):
    """A binding, and the arrays by name that its outputs are written to."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    outputs = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
    return binding, outputs
