"""Times torchvision's ResNet-50 in OpenVINO on batches held in memory and prints one JSON line.

    python bench_resnet50.py infer [--batch-size N] [--precision fp32|bf16] [--weights FILE] [--threads N] ...

Compiled for latency and for the one batch size; inputs are passed and outputs are read without copies.
"""

import sys
from pathlib import Path

import openvino as ov

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import measuring
import onnx_resnet50
import ov_model
import resnet_work


def make_step(compiled, batches):
    """Logits of a batch; each batch has a request of its own."""
    # The arrays are kept, because a tensor that shares their memory does not hold them.
    inputs = {id(images): resnet_work.to_nchw(images) for images, _ in batches}
    requests = {key: bind(compiled, array) for key, array in inputs.items()}

    def step(images, _):
        request = requests[id(images)]
        request.infer(share_outputs=True)
        return request.get_output_tensor().data

    step.inputs = inputs
    return step


def bind(compiled, array):
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))
    return request


def main():
    import_memory = measuring.resident_bytes()
    parser = measuring.parser(__doc__, modes=["infer"], precisions=list(ov_model.PRECISIONS))
    resnet_work.add_arguments(parser)
    onnx_resnet50.add_arguments(parser)
    args = parser.parse_args()
    shape = [args.batch_size, 3, resnet_work.SIZE, resnet_work.SIZE]
    compiled, batches = ov_model.compile_model(onnx_resnet50.file(args), shape, args), resnet_work.batches(args)
    timing = measuring.run(make_step(compiled, batches), batches, args)
    if args.outputs:
        measuring.write_outputs(args.outputs, logits=timing.results[-1])
    measuring.print_event(args, resnet_work.MODEL, timing, "openvino", ov_model.VERSION, ov_model.OPTIONS,
                          import_memory)


if __name__ == "__main__":
    main()
