"""The compiled model of both scripts."""

import openvino as ov

PRECISIONS = {"fp32": ov.Type.f32, "bf16": ov.Type.bf16}
OPTIONS = {"performance_hint": "latency"}
VERSION = ov.__version__.split("-")[0]


def compile_model(path, shape, args):
    """For one shape of the inputs, or shapes by their names."""
    core = ov.Core()
    model = core.read_model(path)
    model.reshape(shape)
    compiled = core.compile_model(model, "CPU", {
        "INFERENCE_PRECISION_HINT": PRECISIONS[args.precision], "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": args.threads, "NUM_STREAMS": 1,
    })
    precision = compiled.get_property("INFERENCE_PRECISION_HINT")
    if precision != PRECISIONS[args.precision]:
        raise SystemExit(f"OpenVINO runs in {precision.get_type_name()} on this processor, not in {args.precision}")
    return compiled
