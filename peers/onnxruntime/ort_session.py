"""The session of both scripts."""

import onnxruntime as ort

OPTIONS = {"graph_optimization": "all", "io_binding": True}


def make(path, args):
    """With the dimension `batch` fixed."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = args.threads
    options.inter_op_num_threads = 1
    options.add_free_dimension_override_by_name("batch", args.batch_size)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
