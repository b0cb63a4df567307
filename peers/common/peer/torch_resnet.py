"""torchvision's ResNet with bottlenecks and the weights of the work."""

import torch
from torchvision.models.resnet import Bottleneck, ResNet


def make(work):
    model = ResNet(Bottleneck, work.sizes.layers, num_classes=work.sizes.classes)
    weights = {name: torch.from_numpy(array) for name, array in {**work.trained_weights(), **work.statistics()}.items()}
    wrong = model.load_state_dict(weights, strict=False)
    missing = [name for name in wrong.missing_keys if not name.endswith("num_batches_tracked")]
    if missing or wrong.unexpected_keys:
        raise ValueError(f"weights: {[*missing, *wrong.unexpected_keys][0]} is in the file or in torchvision's model alone")
    return model
