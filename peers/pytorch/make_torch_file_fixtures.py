"""Writes the files of `torch.save` that crates/weights reads in its tests, good ones and hostile ones.

Good files have the tensors that they must give beside them (`NAME.safetensors`). Hostile ones are made from the pickle and the
entries of a good one, or written opcode by opcode, as PyTorch would not write them. The output depends on nothing but this
script and the version of torch, except for the keys in `legacy.pth`, which are addresses.
"""

import argparse
import collections
import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file

FIXTURES = Path(__file__).parents[2] / "crates/weights/tests/fixtures/torch_files"


class Command:
    """Runs a command in whoever unpickles it without care."""

    def __reduce__(self):
        return os.system, ("touch torch_file_command_was_run",)


class Unknown:
    """A class that no reader knows."""


def tensors():
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(4, 6, generator=generator)
    pair = torch.arange(12, dtype=torch.float32)
    return collections.OrderedDict([
        ("f32", base),
        ("f16", base[:2].half()),
        ("bf16", base[:2].bfloat16()),
        ("f64", base[0].double()),
        ("i64", torch.tensor(2**40 + 3)),
        ("i32", torch.tensor([-1, 5], dtype=torch.int32)),
        ("u8", torch.tensor([0, 255, 7], dtype=torch.uint8)),
        ("bool", torch.tensor([True, False])),
        ("empty", torch.zeros(0, 3)),
        ("scalar", torch.tensor(0.5)),
        ("parameter", torch.nn.Parameter(base[1].clone())),
        # Views: of a storage of their own, and of one that several tensors share.
        ("transposed", base.clone().t()),
        ("strided", torch.arange(60.0).reshape(3, 4, 5)[1:, ::2, 1::3]),
        ("permuted", torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)),
        ("broadcast", torch.tensor([[1.0], [2.0]]).expand(2, 3)),
        ("first_half", pair[:6]),
        ("second_half", pair[6:].view(2, 3)),
        ("tied", base),
    ])


def resnet20():
    """All tensors of a ResNet-20 for CIFAR-10, as views of one storage that keeps the file small."""
    shapes = {"conv1.weight": (16, 3, 3, 3)}

    def norm(name, channels):
        shapes.update({f"{name}.{part}": (channels,) for part in ["weight", "bias", "running_mean", "running_var"]})
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 16)
    inputs = 16
    for stage, channels in [(1, 16), (2, 32), (3, 64)]:
        for block in range(3):
            for conv in (1, 2):
                shapes[f"layer{stage}.{block}.conv{conv}.weight"] = (channels, inputs, 3, 3)
                norm(f"layer{stage}.{block}.bn{conv}", channels)
                inputs = channels
    shapes.update({"linear.weight": (10, 64), "linear.bias": (10,)})
    base = (((torch.arange(80_000) * 7919) % 1024 + 1) / 1024).half()
    tensors = collections.OrderedDict()
    for index, (name, shape) in enumerate(shapes.items()):
        size = torch.Size(shape).numel()
        counts = name.endswith("tracked")
        tensors[name] = torch.tensor(index) if counts else base[61 * index:][:size].view(shape)
    return tensors


def expected(state_dict):
    return {name: tensor.detach().contiguous().clone() for name, tensor in state_dict.items()}


def module():
    """A network of every kind of tensor that modules save, with `_metadata`."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3))


def shifted(state_dict, by):
    return {name: tensor + by for name, tensor in state_dict.items()}


def good(folder):
    plain = tensors()
    torch.save(plain, folder / "plain.pth")
    torch.save(plain, folder / "protocol4.pth", pickle_protocol=4)
    torch.save(plain, folder / "protocol5.pth", pickle_protocol=5)
    save_file(expected(plain), folder / "plain.safetensors")
    torch.save({"model": resnet20(), "epoch": 3}, folder / "resnet20.pth")
    net = module()
    state = net.state_dict()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 2, 2, 2)).sum().backward()
    optimizer.step()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    around = {
        "epoch": 3, "best": 0.25, "big": 2**80, "history": [1.5, None, "x"], "kinds": {1, 2}, "size": torch.Size([2, 3]),
        "device": torch.device("cpu"), "dtype": torch.float32, "raw": b"bytes", "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(lr=0.1, names=["a"]), "count": collections.Counter([3, 3]),
    }
    torch.save({**around, "state_dict": net.state_dict()}, folder / "state_dict.pth")
    torch.save({**around, "model": net.state_dict()}, folder / "model.pth")
    several = {"model": shifted(state, 2), "state_dict_ema": net.state_dict(), "state_dict": shifted(state, 1)}
    torch.save({**around, **several}, folder / "several.pth")
    save_file(expected(state), folder / "network.safetensors")


def write_zip(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(f"x/{name}"), data, compression)


def text(string):
    return b"X" + struct.pack("<I", len(string)) + string.encode()


def integer(number):
    return b"J" + struct.pack("<i", number) if abs(number) < 2**31 else b"\x8a\x08" + struct.pack("<q", number)


def numbers(*values):
    return b"(" + b"".join(map(integer, values)) + b"t"


def tensor(elements=4, offset=0, shape=(2, 2), strides=(2, 1), key="0", storage="FloatStorage"):
    identity = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu") + integer(elements) + b"tQ"
    view = b"(" + identity + integer(offset) + numbers(*shape) + numbers(*strides) + b"\x89}tR"
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + view


def state_dict(*items):
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in items) + b"u."


def hostile(folder):
    def write(name, data, content=None, **options):
        write_zip(folder / f"{name}.pth", {"data.pkl": data, "version": b"3\n", "data/0": bytes(16), **(content or {})},
                  **options)

    one = state_dict(("w", tensor()))
    write("well_formed", one)
    for name, value in [("command", Command()), ("unknown_class", Unknown())]:
        torch.save({"state_dict": {"w": torch.zeros(2)}, "hook": value}, folder / f"{name}.pth")
    write("builtin", b"\x80\x02cbuiltins\neval\n" + text("1") + b"\x85R.")
    write("getattr", b"\x80\x04" + text("torch") + text("load") + b"\x93)R.")
    write("instance", b"\x80\x02(i" + b"os\nsystem\n.")
    write("extension", b"\x80\x02\x82\x01.")
    torch.save({"w": torch.zeros(2)}, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(folder / "script.pt"))
    (folder / "text.pth").write_text("these are no weights")
    (folder / "empty.pth").write_bytes(b"")
    whole = (folder / "well_formed.pth").read_bytes()
    (folder / "truncated.pth").write_bytes(whole[: len(whole) * 2 // 3])
    write("compressed", one, compression=zipfile.ZIP_DEFLATED)
    write("bomb", state_dict(("w", tensor(1 << 20, 0, (1 << 20,), (1,)))), {"data/0": bytes(1 << 22)},
          compression=zipfile.ZIP_DEFLATED)
    write("storage_lies", state_dict(("w", tensor(elements=1 << 40))))
    write("storage_small", state_dict(("w", tensor(elements=3, shape=(3,), strides=(1,)))))
    write("storage_negative", state_dict(("w", tensor(elements=-4))))
    write("storage_missing", state_dict(("w", tensor(key="9"))))
    write("storage_path", state_dict(("w", tensor(key="../data.pkl"))))
    write("offset_beyond", state_dict(("w", tensor(offset=1))))
    write("offset_negative", state_dict(("w", tensor(offset=-1))))
    write("stride_beyond", state_dict(("w", tensor(strides=(3, 1)))))
    write("stride_negative", state_dict(("w", tensor(strides=(-2, 1)))))
    write("stride_overflow", state_dict(("w", tensor(strides=(2**62, 2**62), shape=(5, 5)))))
    write("shape_overflow", state_dict(("w", tensor(shape=(2**62, 2**62), strides=(0, 0)))))
    write("shape_broadcast", state_dict(("w", tensor(shape=(2**40,), strides=(0,)))))
    write("shape_of_text", state_dict(("w", tensor().replace(numbers(2, 2), b"(" + text("2") + b"t"))))
    write("dimensions", state_dict(("w", tensor(shape=(1,) * 65, strides=(1,) * 65))))
    write("strides_missing", state_dict(("w", tensor(strides=(1,)))))
    write("complex", state_dict(("w", tensor(storage="ComplexFloatStorage"))))
    many = [("w0", tensor(256, 0, (16, 16), (16, 1)) + b"q\x01")] + [(f"w{i}", b"h\x01") for i in range(1, 400)]
    write("shared_by_many", state_dict(*many), {"data/0": bytes(1024)})
    write("repeated_name", state_dict(("w", tensor()), ("w", tensor())))
    write("deep", b"\x80\x02" + b"(" * 20_000 + b"t" * 20_000 + b".")
    write("cycle", b"\x80\x02}q\x01" + text("state_dict") + b"h\x01s.")
    write("memo_missing", b"\x80\x02}" + text("w") + b"j\xff\xff\xff\xffs.")
    write("memo_far", b"\x80\x02}r\xff\xff\xff\xff" + text("w") + tensor() + b"s.")
    write("no_end", state_dict(("w", tensor()))[:-1])
    write("long_text", b"\x80\x02}\x8d" + struct.pack("<Q", 2**63) + b"w.")
    write("no_tensors", pickle.dumps({"epoch": 1, "optimizer": {}}, 2))
    write("list", pickle.dumps([1, 2], 2))
    write("no_pickle", b"", {})
    write_zip(folder / "no_pickle.pth", {"data/0": bytes(16)})
    write("big_endian", one, {"byteorder": b"big"})
    write("version", one, {"version": b"11\n"})
    # The checksum of an entry does not fit its content.
    data = bytearray(whole)
    start = data.index(bytes(16), data.index(b"x/data/0"))
    data[start + 3] ^= 1
    (folder / "checksum.pth").write_bytes(bytes(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIXTURES, help="folder (default: that of crates/weights)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    good(folder)
    hostile(folder)


if __name__ == "__main__":
    main()
