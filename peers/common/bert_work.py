"""The work on BERT in pre-training: its arguments, batches and initial weights, with Hugging Face's names.

The activation is GELU by `tanh`, as in Google's code.
"""

import numpy as np

POSITIONS = 512
TYPES = 2
HEAD_WIDTH = 64
LAYER_NORM_EPS = 1e-12
INITIAL_DEVIATION = 0.02
MASKED_SCORE = -10_000.0

ADAMW = {"betas": (0.9, 0.999), "eps": 1e-6}
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0

# What a forward pass reads.
INPUTS = ["input_ids", "segment_ids", "input_mask", "masked_lm_positions"]


def add_arguments(parser):
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20, help="words to predict in a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help=f"width, a multiple of {HEAD_WIDTH}")
    parser.add_argument("--vocabulary", type=int, default=30_522)
    parser.add_argument("--weights", help="safetensors with Hugging Face's names (default: seeded random)")
    parser.add_argument("--batches",
                        help="safetensors with the feeds of one step, as export_bert_parity.py writes them")


def add_training_arguments(parser):
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--no-clip", action="store_true", help="train without clipping gradients")
    parser.add_argument("--lr", type=float, default=0.001)


def model_name(args):
    base = (args.layers, args.hidden, args.vocabulary) == (12, 768, 30_522)
    return "bert-base" if base else f"bert-{args.layers}x{args.hidden}-{args.vocabulary}"


def options(args, **more):
    """Options of the `bench` event, by the names of `bessemer bench`."""
    found = {"sequence_length": args.sequence_length, "predictions": args.predictions}
    if args.mode == "train":
        found |= {"dropout": args.dropout, "clip": not args.no_clip}
    return found | more


def feeds(args):
    """The feeds of a training step by name, B sequences of S tokens with P words to predict: `input_ids`,
    `segment_ids`, `input_mask` i32 [B, S], `masked_lm_positions`, `masked_lm_ids` i32 [B, P], `masked_lm_weights` f32 [B, P],
    `next_sentence_labels` i32 [B]. Seeded ones have no padding.
    """
    batch, length, predictions = args.batch_size, args.sequence_length, args.predictions
    if args.batches:
        from safetensors.numpy import load_file
        tensors = load_file(args.batches)
        found, wanted = (*tensors["input_ids"].shape, tensors["masked_lm_ids"].shape[1]), (batch, length, predictions)
        if found != wanted:
            raise SystemExit(f"{args.batches}: [batch size, sequence length, predictions] is {list(found)}, "
                             f"but {list(wanted)} was asked for")
        return tensors
    random = np.random.default_rng(args.seed)

    def below(limit, *shape):
        return random.integers(0, limit, shape, dtype=np.int32)

    return {
        "input_ids": below(args.vocabulary, batch, length), "segment_ids": below(TYPES, batch, length),
        "input_mask": np.ones((batch, length), np.int32),
        "masked_lm_positions": below(length, batch, predictions),
        "masked_lm_ids": below(args.vocabulary, batch, predictions),
        "masked_lm_weights": np.ones((batch, predictions), np.float32), "next_sentence_labels": below(2, batch),
    }


def shapes(args):
    """Shapes of the parameters by name; the matrix before the vocabulary is that of the words."""
    hidden, wide = args.hidden, 4 * args.hidden
    found = {
        f"bert.embeddings.{table}_embeddings.weight": (rows, hidden)
        for table, rows in [("word", args.vocabulary), ("position", POSITIONS), ("token_type", TYPES)]
    }

    def norm(name):
        found.update({f"{name}.LayerNorm.weight": (hidden,), f"{name}.LayerNorm.bias": (hidden,)})

    def linear(name, inputs, outputs):
        found.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    norm("bert.embeddings")
    for index in range(args.layers):
        layer = f"bert.encoder.layer.{index}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output")
        linear(f"{layer}.intermediate.dense", hidden, wide)
        linear(f"{layer}.output.dense", wide, hidden)
        norm(f"{layer}.output")
    linear("bert.pooler.dense", hidden, hidden)
    linear("cls.predictions.transform.dense", hidden, hidden)
    norm("cls.predictions.transform")
    found["cls.predictions.bias"] = (args.vocabulary,)
    linear("cls.seq_relationship", hidden, 2)
    return found


def weights(args):
    """Initial weights f32 by name: those of `--weights`, or seeded ones, which are the same for every framework."""
    wanted = shapes(args)
    if args.weights:
        from safetensors.numpy import load_file
        tensors = load_file(args.weights)
        wrong = [name for name, shape in wanted.items() if name not in tensors or tensors[name].shape != shape]
        if wrong:
            raise SystemExit(f"{args.weights}: {wrong[0]} should be {list(wanted[wrong[0]])}")
        return {name: tensors[name] for name in wanted}
    random = np.random.default_rng(args.seed)
    return {name: initial(name, shape, random) for name, shape in wanted.items()}


def initial(name, shape, random):
    """Biases of 0, scales of norms of 1, the rest normal."""
    if len(shape) == 1:
        return np.full(shape, 1 if name.endswith("LayerNorm.weight") else 0, np.float32)
    values = random.standard_normal(shape, dtype=np.float32)
    values *= INITIAL_DEVIATION
    return values


def is_decayed(name):
    return not (name.endswith("bias") or "LayerNorm" in name)
