"""Times torchvision's ResNet-50 in ONNX Runtime on batches held in memory and prints one JSON line.

    python bench_resnet50.py infer [--batch-size N] [--weights FILE] [--threads N] ...

All graph optimisations, the batch size fixed before they run, input and output bound to memory made beforehand.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import measuring
import onnx_resnet50
import ort_session
import resnet_work


def make_step(session, batches):
    """Logits of a batch; each batch has a binding of its own."""
    bindings = {id(images): bind(session, images) for images, _ in batches}

    def step(images, _):
        binding, logits = bindings[id(images)]
        session.run_with_iobinding(binding)
        return logits.numpy()

    return step


def bind(session, images):
    logits = ort.OrtValue.ortvalue_from_shape_and_type([len(images), resnet_work.CLASSES], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("images", ort.OrtValue.ortvalue_from_numpy(resnet_work.to_nchw(images)))
    binding.bind_ortvalue_output("logits", logits)
    return binding, logits


def main():
    import_memory = measuring.resident_bytes()
    parser = measuring.parser(__doc__, modes=["infer"], precisions=["fp32"])
    resnet_work.add_arguments(parser)
    onnx_resnet50.add_arguments(parser)
    args = parser.parse_args()
    session, batches = ort_session.make(onnx_resnet50.file(args), args), resnet_work.batches(args)
    timing = measuring.run(make_step(session, batches), batches, args)
    if args.outputs:
        measuring.write_outputs(args.outputs, logits=timing.results[-1])
    measuring.print_event(args, resnet_work.MODEL, timing, "onnxruntime", ort.__version__, ort_session.OPTIONS,
                          import_memory)


if __name__ == "__main__":
    main()
