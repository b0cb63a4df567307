"""Pictures for PyTorch, channels last. On a GPU a step copies them there as bytes, and normalises them."""

import torch


def pinned(x, device):
    """Where copies to the device begin."""
    return x if device.type == "cpu" else x.pin_memory()


class Images:
    """Of each batch its pictures, normalised, [N, 3, H, W]."""

    def __init__(self, work, device):
        self.device = device
        if device.type == "cpu":
            self.ready = [torch.from_numpy(images).permute(0, 3, 1, 2) for images in work.images()]
            return
        self.pixels = [torch.from_numpy(pixels).pin_memory() for pixels in work.pixels()]
        self.mean, self.std = (torch.tensor(work.normalise[name], device=device) for name in ("mean", "std"))

    def __getitem__(self, batch):
        if self.device.type == "cpu":
            return self.ready[batch]
        x = (self.pixels[batch].to(self.device, non_blocking=True) - self.mean) / self.std
        return self.within(x, batch).permute(0, 3, 1, 2)

    def within(self, x, batch):
        return x


class DetectorImages(Images):
    """Zeros outside of the images."""

    def __init__(self, work, device):
        super().__init__(work, device)
        if device.type != "cpu":
            self.insides = [inside(fed["images"].shape, fed["sizes"]).to(device) for fed in work.named_feeds(["images", "sizes"])]

    def within(self, x, batch):
        return torch.where(self.insides[batch], x, 0.0)


def inside(shape, sizes):
    """bool [N, H, W, 1]: which pixels are the image's, of sizes [N, 2]."""
    rows, columns = torch.arange(shape[1])[:, None], torch.arange(shape[2])[None]
    return torch.stack([(rows < int(height)) & (columns < int(width)) for height, width in sizes])[..., None]
