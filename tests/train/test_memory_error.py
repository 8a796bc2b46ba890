"""A device whose memory runs out during a run: the error names the batch and a next step."""

import pytest
import torch

from feedline.errors import UsageError
from feedline.train.evaluate import evaluate_folder
from feedline.train.model import load_trained
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model


class _Full(torch.nn.Module):
    """Has no memory for training images of 40 px and validation images of 56 px."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        if images.shape[-1] == (40 if self.training else 56) and not images.is_meta:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")
        return self.inner(images)


@pytest.fixture(scope="module", autouse=True)
def _full_model():
    """Register a model with timm, which is only imported for these tests; see `needs`."""
    import timm

    timm.models.register_model(feedline_test_full)


def feedline_test_full(pretrained=False, **settings):
    import timm

    return _Full(timm.create_model("test_resnet.r160_in1k", **settings))


def run(root, out, schedule):
    recipe = Recipe(model="feedline_test_full", schedule=schedule, batch_size=8, val_image_size=32)
    asked = RunSettings(data=root, out=out, device="cpu", workers=0, warmup_shapes=False)
    train_model(recipe, asked)


def test_a_step_without_memory_names_the_batch(tiny_set, tmp_path):
    with pytest.raises(UsageError) as raised:
        run(tiny_set, tmp_path / "out", "32x1,40x1@10")
    message = str(raised.value)
    assert "a batch of 10 images at 40 px (epoch 2) does not fit" in message
    assert "Tried to allocate 9 GiB" in message
    assert "more" not in message, "torch's first line is enough"
    assert "--batch-size" in raised.value.hint
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def test_validation_without_memory_names_its_size(tiny_set, tmp_path):
    phases = [{"size": 32, "epochs": 1}, {"size": 32, "epochs": 1, "val_image_size": 56}]
    with pytest.raises(UsageError) as raised:
        run(tiny_set, tmp_path / "out", phases)
    assert "in validation, a batch of 8 images at 56 px (epoch 2)" in str(raised.value)
    assert "--val-image-size" in raised.value.hint
    weights = load_trained(tmp_path / "out", torch.device("cpu"))
    with pytest.raises(UsageError, match="a batch of 64 images at 56 px"):
        evaluate_folder(
            weights, tiny_set / "val", precision=torch.float32, workers=0, image_size=56
        )
