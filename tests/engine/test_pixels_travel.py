"""Batches of recognised pipelines on a device: pixels travel, and the same values arrive."""

import warnings

import pytest
import torch
from model import ModelDevice
from torch.utils.data import TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from feedline import DataLoader, per_size
from feedline.errors import SampleError, UsageError
from torchvision_folder import write_images

NORMALIZE = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
USUAL = [
    *(v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()),
    *(v1.ToTensor(), v1.Normalize(**NORMALIZE)),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("pixels-travel"))


@pytest.fixture
def sent(monkeypatch):
    """dtypes of the images that are transferred to a simulated device, which replaces "cuda"."""
    seen = []

    class Watched(ModelDevice):
        def copy(self, tensor):
            if tensor.ndim == 4:
                seen.append(tensor.dtype)
            made = super().copy(tensor)
            self.synchronize()  # values are made of it by torch itself
            return made

        def record_stream(self, tensor, stream):
            """Nothing is used again before its time."""

    there = torch.device("cuda", 0)
    monkeypatch.setattr("feedline.loader.options.resolve_device", lambda device: there)
    monkeypatch.setattr("feedline.loader.start_engine.TorchAccelerator", lambda device: Watched())
    monkeypatch.setattr("feedline.loader.start_engine.register_memory", lambda *_: None)
    return seen


def loader(root, steps, **options):
    options = {"batch_size": 3, "seed": 4, "num_workers": 0, **options}
    return DataLoader(ImageFolder(str(root), v1.Compose(steps)), **options)


def batches(root, steps, **options):
    with loader(root, steps, **options) as made:
        return list(made)


def assert_same(found, wanted):
    assert len(found) == len(wanted) > 1
    for batch, other in zip(found, wanted, strict=True):
        assert type(batch) is type(other) is list
        for tensor, same in zip(batch, other, strict=True):
            assert type(tensor) is type(same) is torch.Tensor
            assert (tensor.dtype, tensor.stride()) == (same.dtype, same.stride())
            assert torch.equal(tensor, same)


TABLES = {
    "usual": USUAL,
    "no flip, no Normalize": [v1.Resize(30), v1.CenterCrop(24), v1.ToTensor()],
    "no square": [v1.Resize(30), v1.RandomCrop((12, 24)), *USUAL[2:]],
    "half": [
        *(v2.RandomResizedCrop(24), v2.ToImage()),
        *(v2.ToDtype(torch.float16, scale=True), v2.Normalize(**NORMALIZE)),
    ],
    "a policy as it is": [USUAL[0], v1.RandAugment(), *USUAL[2:]],
}


@pytest.mark.parametrize("steps", TABLES.values(), ids=TABLES)
def test_pixels_are_transferred_and_values_are_equal(root, sent, steps):
    wanted = batches(root, steps)
    assert not sent
    assert_same(batches(root, steps, device="cuda"), wanted)
    assert set(sent) == {torch.uint8}


VALUES = {
    "a step behind": ([*USUAL, v1.RandomErasing(1.0)], torch.float32),
    "bytes": ([*USUAL[:2], v1.PILToTensor()], torch.uint8),
    "one channel": ([USUAL[0], v1.Grayscale(), v1.ToTensor()], torch.float32),
}


@pytest.mark.parametrize(("steps", "dtype"), VALUES.values(), ids=VALUES)
def test_unsupported_last_step_is_transferred_unchanged(root, sent, steps, dtype):
    assert_same(batches(root, steps, device="cuda"), batches(root, steps))
    assert set(sent) == {dtype}
    with loader(root, steps, device="cuda") as made:
        assert "copied to cuda:0" in made.explain()


@pytest.mark.slow
def test_workers_and_a_schedule_of_sizes(root, sent):
    options = {"schedule": "12x2@4,20x1@2", "num_workers": 2, "max_image_size": 20}
    there = loader(root, USUAL, device="cuda", **options)
    with there, loader(root, USUAL, **options) as here:
        for _ in range(3):
            assert_same(list(there), list(here))
        there.set_image_size(16)
        here.set_image_size(16)
        assert_same(list(there), list(here))
    assert set(sent) == {torch.uint8}


def test_slots_shrink_and_pixels_stay_equal(root, sent):
    with loader(root, USUAL) as here, loader(root, USUAL, device="cuda") as there:
        assert "copied as uint8" in there.explain()
        assert "copied as uint8" not in here.explain()
        state = there.state_dict()
        assert state == here.state_dict()
        next(iter(there))
        state = there.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            here.load_state_dict(state)
        assert_same(list(here), batches(root, USUAL)[1:])
        for each in (here, there):
            assert " in 4 batches" in each.explain()
        assert 0 < 4 * there.memory_bytes <= here.memory_bytes + 4 * 3 * 4096


def test_broken_file_is_skipped_on_device_path(tmp_path, sent):
    root = write_images(tmp_path)
    (root / "cats/b.png").write_bytes(b"no image")
    options = {"on_error": "skip", "shuffle": False}
    found = batches(root, USUAL, device="cuda", **options)
    assert_same(found, batches(root, USUAL, **options))
    assert [len(labels) for _, labels in found] == [2, 3, 1]
    with pytest.raises(SampleError, match=r"b\.png"):
        batches(root, USUAL, device="cuda", shuffle=False)


def test_step_without_pixels_raises_with_hint(root, sent):
    now_and_then = v2.RandomApply([v2.ToDtype(torch.float32, scale=True)], p=0.5)
    floats = v2.ToDtype(torch.float32, scale=True)
    steps = [v2.RandomResizedCrop(24), v2.ToImage(), now_and_then, floats]
    assert len(batches(root, steps)) == 3
    with pytest.raises(SampleError, match=r"RandomApply.*did not return 24 x 24 RGB pix"):
        batches(root, steps, device="cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collate_fn": lambda samples: samples}, "Your collate_fn needs single samples"),
        ({"worker_init_fn": print}, "Your worker_init_fn may change the dataset"),
    ],
)
def test_batches_of_other_engines_are_rejected_immediately(root, sent, options, said, device):
    with pytest.raises(UsageError, match=rf"is only for .*{said}.*pin_memory=True"):
        loader(root, USUAL, device=device, **options)


@pytest.mark.usefixtures("sent")
def test_other_datasets_are_rejected_immediately(root):
    own = [per_size(lambda size: v1.Compose([v1.Resize((size, size)), v1.ToTensor()]))]
    with pytest.raises(UsageError, match=r'device "cuda:0" .*This ImageFolder uses'):
        loader(root, own, device="cuda")
    with pytest.raises(UsageError, match="This TensorDataset uses the tensor engine"):
        DataLoader(TensorDataset(torch.zeros(4)), 2, device="cuda")


def test_cpu_device_batches_equal_those_without_device(root):
    assert_same(batches(root, USUAL, device="cpu"), batches(root, USUAL))
    with loader(root, USUAL, device="cpu") as made:
        assert made._runtime.stream.choice().device_transforms is None


def test_bytes_in_other_order_are_not_pixels(root):
    """(3, 3, 3) may be channels first or last."""
    steps = [v1.Resize((3, 3)), v1.PILToTensor()]
    found = torch.cat([images for images, _ in batches(root, steps, shuffle=False)])
    wanted = torch.stack([image for image, _ in ImageFolder(str(root), v1.Compose(steps))])
    assert (found.int() - wanted.int()).abs().max() <= 2
