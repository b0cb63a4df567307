"""Times BERT's encoder and heads in ONNX Runtime on one batch held in memory and prints one JSON line.

    python bert_infer.py infer [--batch-size N] [--weights FILE] [--threads N] ...

All graph optimisations, the batch size fixed before they run, inputs and outputs bound to memory made beforehand.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import bert_work
import measuring
import onnx_bert
import ort_session


def make_step(session, args, feeds):
    binding = session.io_binding()
    for name in bert_work.INPUTS:
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(feeds[name]))
    shapes = [[args.batch_size, args.predictions, args.vocabulary], [args.batch_size, 2]]
    outputs = {name: ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
               for name, shape in zip(onnx_bert.OUTPUTS, shapes)}
    for name, output in outputs.items():
        binding.bind_ortvalue_output(name, output)

    def step():
        session.run_with_iobinding(binding)
        return {name: output.numpy() for name, output in outputs.items()}

    return step


def main():
    import_memory = measuring.resident_bytes()
    parser = measuring.parser(__doc__, modes=["infer"], precisions=["fp32"])
    bert_work.add_arguments(parser)
    onnx_bert.add_arguments(parser)
    args = parser.parse_args()
    session = ort_session.make(onnx_bert.file(args), args)
    timing = measuring.run(make_step(session, args, bert_work.feeds(args)), [()], args)
    if args.outputs:
        measuring.write_outputs(args.outputs, **timing.results[-1])
    options = bert_work.options(args, **ort_session.OPTIONS)
    measuring.print_event(args, bert_work.model_name(args), timing, "onnxruntime", ort.__version__, options,
                          import_memory)


if __name__ == "__main__":
    main()
