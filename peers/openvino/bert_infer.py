"""Times BERT's encoder and heads in OpenVINO on one batch held in memory and prints one JSON line.

    python bert_infer.py infer [--batch-size N] [--precision fp32|bf16] [--weights FILE] [--threads N] ...

Compiled for latency and for the one batch size; inputs are passed and outputs are read without copies.
"""

import sys
from pathlib import Path

import openvino as ov

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import bert_work
import measuring
import onnx_bert
import ov_model


def make_step(compiled, inputs):
    """`inputs` must live as long as the step: a tensor that shares their memory does not hold them."""
    request = compiled.create_infer_request()
    for name, array in inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def step():
        request.infer(share_outputs=True)
        return {name: request.get_tensor(name).data for name in onnx_bert.OUTPUTS}

    return step


def main():
    import_memory = measuring.resident_bytes()
    parser = measuring.parser(__doc__, modes=["infer"], precisions=list(ov_model.PRECISIONS))
    bert_work.add_arguments(parser)
    onnx_bert.add_arguments(parser)
    args = parser.parse_args()
    feeds = bert_work.feeds(args)
    inputs = {name: feeds[name] for name in bert_work.INPUTS}
    shapes = {name: list(array.shape) for name, array in inputs.items()}
    compiled = ov_model.compile_model(onnx_bert.file(args), shapes, args)
    timing = measuring.run(make_step(compiled, inputs), [()], args)
    if args.outputs:
        measuring.write_outputs(args.outputs, **timing.results[-1])
    options = bert_work.options(args, **ov_model.OPTIONS)
    measuring.print_event(args, bert_work.model_name(args), timing, "openvino", ov_model.VERSION, options,
                          import_memory)


if __name__ == "__main__":
    main()
