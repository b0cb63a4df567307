"""Masks of regions from crops of the ground truths' masks, by the rule of Mask R-CNN's recipe, in NumPy."""

import numpy as np

BORDER = 2


def mask_shares(crop, truth, region, size):
    """`crop` [M, M] in 0..255 covers the box `truth`; the shares [size, size] of 255 at the centres of the bins of `region`."""
    side = crop.shape[0]
    padded = np.pad(crop / 255.0, BORDER)
    taps = []
    for axis in (1, 0):
        scale = side / (truth[axis + 2] - truth[axis] + 1e-8)
        start = (region[axis] - truth[axis]) * scale + BORDER
        at = start + (np.arange(size) + 0.5) * (region[axis + 2] - region[axis]) * scale / size
        low = np.maximum(np.floor(at), 0)
        pixels = np.minimum(np.stack([low, low + 1]), side + 2 * BORDER - 1).astype(int)
        taps.append((pixels, np.stack([1 - (at - low), at - low])))
    (rows, down), (cols, across) = taps
    return np.einsum("iy,jx,ijyx->yx", down, across, padded[rows[:, None, :, None], cols[None, :, None, :]])
