"""Writes what timm's EfficientNet-B0 computes for one small batch, for comparison at full size.

    python export_efficientnet_b0_parity.py --out DIR [--images DATA/val] [--same]

The files are those of `image_parity.py`, with 213 parameters by timm's names. Dropout and stochastic depth are off.
"""

import timm

import image_parity


def main():
    parser = image_parity.parser(__doc__, lr=0.002)
    parser.add_argument("--same", action="store_true", help="`tf_efficientnet_b0`: SAME padding, batch-norm epsilon 1e-3")
    args = parser.parse_args()
    name = "tf_efficientnet_b0" if args.same else "efficientnet_b0"
    facts = {"timm": timm.__version__, "model": name, "padding": "same" if args.same else "symmetric",
             "bn_eps": 1e-3 if args.same else 1e-5}
    image_parity.export(args, lambda: timm.create_model(name), facts)


if __name__ == "__main__":
    main()
