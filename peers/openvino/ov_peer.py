"""Steps of inference in OpenVINO: compiled for latency and for the one batch size, inputs and outputs without copies."""

import openvino as ov
from peer import onnx_file, protocol
from peer.work import NETWORK, channels_behind

PRECISIONS = {"fp32": ov.Type.f32, "bf16": ov.Type.bf16}
HINT = "INFERENCE_PRECISION_HINT"


def precisions():
    """Those that the processor has: without bf16, OpenVINO runs in fp32 instead."""
    can = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return ["fp32", "bf16"] if "BF16" in can else ["fp32"]


class OpenVino(protocol.Peer):
    framework = "openvino"
    version = ov.__version__.split("-")[0]
    variants = [{"name": "compiled", "fused": True, "default": True,
                 "settings": "latency hint, one stream, shared memory, all transformations"}]

    def __init__(self):
        self.offers = protocol.offer(["infer"], precisions(), detectors={"efficientdet": [NETWORK]})

    def prepare(self, request, work):
        onnx_file.made(work, request.cache)

    def step(self, request, work):
        inputs = onnx_file.inputs(work)
        shapes = {name: list(array.shape) for name, array in inputs[0].items()}
        compiled = compile_model(onnx_file.made(work, request.cache), shapes, request)
        requests = [bind(compiled, arrays) for arrays in inputs]
        names = list(onnx_file.output_shapes(work))

        def step(batch):
            bound, _arrays = requests[batch]
            bound.infer(share_outputs=True)
            return channels_behind({name: bound.get_tensor(name).data for name in names})

        return step, {"performance_hint": "latency", "streams": 1}


def compile_model(path, shapes, request):
    """For one shape of the inputs."""
    core = ov.Core()
    model = core.read_model(path)
    model.reshape(shapes)
    wanted = PRECISIONS[request.precision]
    compiled = core.compile_model(model, "CPU", {
        HINT: wanted, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": request.threads, "NUM_STREAMS": 1,
    })
    precision = compiled.get_property(HINT)
    if precision != wanted:
        raise protocol.Cannot(f"OpenVINO runs in {precision.get_type_name()} on this processor, not in {request.precision}")
    return compiled


def bind(compiled, arrays):
    """A request, and the arrays, which must live as long: a tensor that shares their memory does not hold them."""
    request = compiled.create_infer_request()
    for name, array in arrays.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    return request, arrays
