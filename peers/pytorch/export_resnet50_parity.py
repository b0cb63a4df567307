"""Writes what torchvision's ResNet-50 computes for one small batch, for comparison at full size.

    python export_resnet50_parity.py --out DIR [--images DATA/val]

The files are those of `image_parity.py`, with 161 parameters by torchvision's names.

Rounding flips the sign of a few ReLU inputs, and each flip is an error of full size in the gradient: at plain random
weights two float32 implementations differ by percents. The last batch norm of each block therefore starts at a small
gamma, which keeps activations, and with them the flips, close.
"""

import torchvision

import image_parity
import resnet_reference as reference


def make_model(last_gamma):
    model = torchvision.models.resnet50()
    reference.damp_blocks(model, last_gamma)
    return model


def main():
    parser = image_parity.parser(__doc__, lr=0.002)
    parser.add_argument("--last-gamma", type=float, default=0.2, help="gamma of the last batch norm of each block")
    args = parser.parse_args()
    facts = {"torchvision": torchvision.__version__, "last_gamma": args.last_gamma}
    image_parity.export(args, lambda: make_model(args.last_gamma), facts)


if __name__ == "__main__":
    main()
