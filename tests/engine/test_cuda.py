"""Batches on a CUDA device, if available: equal results, safe to hold, overlapped."""

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, RandomErasing, RandomResizedCrop, ToTensor

from feedline.engine.devices import RegisteredMemory
from feedline.engine.shared_memory import SharedFile
from feedline.errors import SampleError
from feedline.loader import DataLoader
from row_sources import Breaking, Rows
from sets import Made
from torchvision_folder import write_images

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # CUDA has threads, and workers for a user's dataset are forked, as torch's are.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

OPTIONS = {"schedule": "16x2,24x2@12", "num_workers": 2, "seed": 3}
CYCLES = 20_000_000
"""For which the device does nothing else: about ten milliseconds."""


def loader(device="cuda", **options):
    return DataLoader(Rows(100), 16, device=device, **{**OPTIONS, **options})


def epochs(made, count=4):
    """All batches of some epochs."""
    return [(images, labels) for _ in range(count) for images, labels in made]


def batches(device, **options):
    with loader(device, **options) as made:
        return epochs(made)


def assert_same(found, wanted):
    for (images, labels), (pixels, names) in zip(found, wanted, strict=True):
        assert torch.equal(images.cpu(), pixels)
        assert torch.equal(labels.cpu(), names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_batches_held_on_device_equal_those_of_cpu(dtype):
    found = batches("cuda", dtype=dtype)
    for images, labels in found:
        assert images.is_cuda
        assert labels.is_cuda
        assert images.dtype == dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
    assert_same(found, batches("cpu", dtype=dtype))


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("own_stream", [False, True])
def test_batches_are_correct_with_a_slow_device(prefetch, own_stream):
    """With as few slots as there can be, and on the default stream or a user's own."""
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    sums = []
    with loader(prefetch=prefetch) as made, torch.cuda.stream(stream):
        for _ in range(4):
            for images, _ in made:
                torch.cuda._sleep(CYCLES)
                sums.append(images.double().sum())
                del images  # its memory must not be used again before the sum is done
    torch.cuda.synchronize()
    wanted = [images.double().sum() for images, _ in batches("cpu")]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.stack(wanted))


def test_registered_memory_is_pinned_until_released():
    block = SharedFile.create(1 << 20)
    tensor = torch.from_numpy(block.array)
    pinned = RegisteredMemory(block.array)
    assert tensor.is_pinned()
    tensor.random_(generator=torch.Generator().manual_seed(0))
    assert torch.equal(tensor.to("cuda", non_blocking=True).cpu(), tensor)
    pinned.release()
    assert not tensor.is_pinned()
    pinned.release()  # once is enough, twice does no harm
    block.close()


def test_size_change_and_restored_state_leave_nothing_stale():
    with loader(max_image_size=24) as made:
        state = made.state_dict()
        first = [images for images, _ in made]
        made.load_state_dict(state)
        again = iter(made)
        assert torch.equal(next(again)[0], first[0])
        torch.cuda._sleep(CYCLES)
        made.set_image_size(20)
        assert next(again)[0].shape[-1] == 20
        made.set_image_size(None)
        assert torch.equal(next(again)[0], first[2])


def test_leaving_an_epoch_early_discards_transfers():
    with loader() as made:
        iteration = iter(made)
        for _ in range(2):
            next(iteration)
            torch.cuda._sleep(CYCLES)
        made.set_epoch(0)
        assert_same(epochs(made), batches("cpu"))


def test_batches_outlive_a_loader_closed_during_copies():
    with loader("cpu") as made:
        wanted = [batch for batch, _ in zip(made, range(3), strict=False)]
    made = loader()
    found = []
    for batch, _ in zip(made, range(3), strict=False):
        torch.cuda._sleep(CYCLES)
        found.append(batch)
    made.close()
    assert_same(found, wanted)


def test_two_loaders_share_a_device():
    one, other = loader(), loader(seed=4)
    with one, other:
        found = ([], [])
        for _ in range(4):
            for pair in zip(one, other, strict=True):
                torch.cuda._sleep(CYCLES // 4)
                for kept, batch in zip(found, pair, strict=True):
                    kept.append(batch)
    assert_same(found[0], batches("cpu"))
    assert_same(found[1], batches("cpu", seed=4))


def test_failed_rows_are_skipped_or_raised_like_on_cpu():
    source, options = Breaking(60, {7, 20, 21}), {**OPTIONS, "on_error": "skip"}
    with DataLoader(source, 16, device="cuda", **options) as made:
        found = epochs(made)
        skipped = [name for name, _ in made.skipped]
    with DataLoader(source, 16, device="cpu", **options) as made:
        assert_same(found, epochs(made))
        assert skipped == [name for name, _ in made.skipped]
    with (
        DataLoader(source, 16, device="cuda", **OPTIONS) as made,
        pytest.raises(SampleError, match="is broken on purpose"),
    ):
        epochs(made)


def test_the_split_of_a_step_finds_the_devices_own_work():
    with loader() as made:
        for _ in range(4):
            for _ in made:
                torch.cuda._sleep(CYCLES)
        torch.cuda.synchronize()
        split = made.timing.totals().mean()
    assert split.steps > 10
    assert split.compute_ms > split.copy_ms >= 0
    assert split.wait_ms >= 0


@pytest.mark.parametrize("workers", [0, 2])
def test_user_defined_dataset_is_pinned_like_in_torch(workers):
    data = Made(40, lambda index: {"number": index, "square": torch.full((64, 64), index**2)})
    made = DataLoader(data, 8, num_workers=workers, pin_memory=True)
    for step, batch in enumerate(made):
        assert batch["number"].is_pinned()
        assert batch["square"].is_pinned()
        moved = batch["square"].to("cuda", non_blocking=True)
        assert moved[:, 0, 0].tolist() == [index**2 for index in range(8 * step, 8 * step + 8)]
    for (numbers,) in DataLoader(TensorDataset(torch.arange(9)), 3, pin_memory=True):
        assert numbers.is_pinned()


def test_pinned_batch_can_be_released_before_its_copy_has_run():
    """Like in torch, its memory is not reused while the device still has to read it."""
    options = {**OPTIONS, "pin_memory": True, "prefetch": 1}
    moved = []
    with DataLoader(Rows(100), 16, **options) as made:
        for _ in range(4):
            for images, labels in made:
                assert images.is_pinned()
                torch.cuda._sleep(CYCLES)
                pair = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
                moved.append(pair)
                del images, labels
    with DataLoader(Rows(100), 16, **OPTIONS) as made:
        assert_same(moved, epochs(made))


@pytest.mark.parametrize("behind", [[], [RandomErasing(1.0)]], ids=["pixels", "values"])
def test_fused_pipeline_equals_cpu_exactly(tmp_path, behind):
    steps = [RandomResizedCrop(24), ToTensor(), Normalize([0.5] * 3, [0.2] * 3), *behind]
    data = ImageFolder(str(write_images(tmp_path)), Compose(steps))
    with DataLoader(data, 3, num_workers=2, seed=1) as here:
        wanted = epochs(here)
    with DataLoader(data, 3, num_workers=2, seed=1, device="cuda") as there:
        found = epochs(there)
    assert_same(found, wanted)
    for (images, labels), (same, _) in zip(found, wanted, strict=True):
        assert images.is_cuda
        assert labels.is_cuda
        assert images.stride() == same.stride()
