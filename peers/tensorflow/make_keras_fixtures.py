"""Writes the HDF5 files of Keras that crates/weights reads in its tests, with the tensors that PyTorch has for the same models.

Needs, beside the requirements of this folder, transformers 4.57, tf-keras 2.21 and torch 2.15.

huggingface/{discriminator,generator}   config.json and tf_model.h5 of small ELECTRAs of transformers, with random weights
nvidia/{discriminator,generator}        the same tensors under the names that NVIDIA's ELECTRA for TensorFlow 2 gives them, where the
                                        generator's embeddings are the discriminator's
expected/{discriminator,generator}      model.safetensors, in which transformers wrote the weights of huggingface/ for PyTorch
"""

import os
import shutil
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import h5py
import numpy as np
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    TFElectraForMaskedLM,
    TFElectraForPreTraining,
)
from transformers.modeling_tf_pytorch_utils import load_tf2_state_dict_in_pytorch_model

FIXTURES = Path(__file__).parents[2] / "crates/weights/tests/fixtures/keras_files"
MODELS = {
    "discriminator": (TFElectraForPreTraining, ElectraForPreTraining, 8, "tf_electra_for_pre_training"),
    "generator": (TFElectraForMaskedLM, ElectraForMaskedLM, 4, "tf_electra_for_masked_lm"),
}


def build(name, numbers):
    """The model with weights of the normal distribution; embeddings are drawn first, so that both models have the same."""
    model_class, _, hidden_size, _ = MODELS[name]
    config = ElectraConfig(
        vocab_size=20,
        embedding_size=4,
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
    )
    model = model_class(config)
    model.build()
    of_embeddings = [variable for variable in model.variables if "/embeddings/" in variable.name]
    others = [variable for variable in model.variables if "/embeddings/" not in variable.name]
    for variable in [*of_embeddings, *others]:
        variable.assign(numbers.standard_normal(variable.shape))
    return model


def rename(source, target, name):
    """Copies a file; variables get the names of NVIDIA's program."""
    scope = MODELS[name][3]
    shared = MODELS["discriminator"][3]
    with h5py.File(source) as before, h5py.File(target, "w") as after:
        after.attrs.update(before.attrs)
        for layer, group in before.items():
            copied = after.create_group(layer)
            new_names = []
            for old in group.attrs["weight_names"]:
                new = f"{shared if '/embeddings/' in old else scope}/{old}"
                copied.create_dataset(new, data=group[old][()])
                new_names.append(new)
            copied.attrs["weight_names"] = new_names


if __name__ == "__main__":
    shutil.rmtree(FIXTURES, ignore_errors=True)
    for name, (_, torch_class, *_) in MODELS.items():
        folders = [FIXTURES / part / name for part in ["huggingface", "nvidia", "expected"]]
        huggingface, nvidia, expected = folders
        for folder in folders:
            folder.mkdir(parents=True)
        model = build(name, np.random.default_rng(5))
        model.save_pretrained(huggingface, safe_serialization=False)
        shutil.copy(huggingface / "config.json", nvidia)
        rename(huggingface / "tf_model.h5", nvidia / "tf_model.h5", name)
        # Names of whole models begin with that of the model.
        arrays = {f"{model.name}/{variable.name}": variable.numpy() for variable in model.variables}
        in_torch = load_tf2_state_dict_in_pytorch_model(torch_class(model.config), arrays)
        in_torch.save_pretrained(expected, safe_serialization=True)
        (expected / "generation_config.json").unlink(missing_ok=True)
