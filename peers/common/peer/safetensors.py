"""Files of tensors: 8 bytes with the length of a JSON header, the header, the tensors."""

import json
from pathlib import Path

import numpy as np

DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
ALIGNMENT = 8


def load(path):
    """Arrays by name, which are read from the file when they are used, and cannot be written."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    start = 8 + length
    header.pop("__metadata__", None)
    return {name: array(path, start, entry) for name, entry in header.items()}


def array(path, start, entry):
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if begin == end:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start + begin, shape or (1,)).reshape(shape)


def save(path, arrays):
    header, offset = {}, 0
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with open(Path(path), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())
