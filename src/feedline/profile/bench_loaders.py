"""Loaders that a benchmark measures over one sample of images: feedline's and two of torch's.

"pillow" is the usual pipeline: Pillow, RandomResizedCrop, RandomHorizontalFlip, ToTensor,
Normalize; float32. "uint8" is torchvision's fastest pipeline: its own decoder and transforms v2 on
uint8 tensors, normalised later on the device. Both keep their workers between epochs; torch limits
each worker to one thread.

Guarantees: every worker started for a loader ends when its context does. Batches made ahead are
used up before counting starts, and counting ends in the same phase of the work as it began, so the
counted batches were made while they were counted.

Relies on: torchvision for torch's loaders, which feedline itself does not need.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.engine.normalise import IMAGENET_MEAN, IMAGENET_STD
from feedline.images.crops import TrainCrop
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.machine import OwnCpuTime
from feedline.order.batch_spec import Field, Item
from feedline.throughput.windows import RateMeter

PREFETCH = 3
"""Batches that feedline's loader makes ahead: the default."""

TORCH_FORMS = {"pillow": "torch + Pillow, float32", "uint8": "torch + torchvision v2, uint8"}
"""Printed names of the forms."""

_PREFETCH_FACTOR = 2  # batches that each of torch's workers makes ahead; torch's own default
_ROWS = 1 << 20  # long enough that the end of the epoch is never measured
_PAUSE_S = 0.05
_TICK_S = 0.011  # the CPU time of processes is updated every 10 ms
_LONGEST_PAUSE_S = 20.0


class ImageSample:
    """Images of a folder by number, at least one, repeated. A `Source`; can be pickled."""

    def __init__(self, folder: ImageFolder, numbers: Sequence[int]) -> None:
        self.folder = folder
        self.numbers = list(numbers)

    def __len__(self) -> int:
        return max(_ROWS, len(self.numbers))

    def _number(self, sample: int) -> int:
        return self.numbers[sample % len(self.numbers)]

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels."""
        return self.folder.fields(image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row as the folder does."""
        self.folder.load(item._replace(sample=self._number(item.sample)), row)

    def name(self, sample: int) -> str:
        """Path of a sample's file, for messages."""
        return self.folder.name(self._number(sample))

    def fingerprint(self) -> str:
        """Short hash of the folder and the sample numbers."""
        digest = hashlib.blake2b(self.folder.fingerprint().encode(), digest_size=8)
        digest.update(np.asarray(self.numbers, "<i8").tobytes())
        return digest.hexdigest()


class TorchImages:
    """The images of a sample as torchvision's ImageFolder gives them, of a form of `TORCH_FORMS`.

    Its items are (image, label): float32 or uint8 (3, size, size), and int.
    """

    def __init__(self, form: str, sample: ImageSample, size: int) -> None:
        from torchvision.datasets.folder import default_loader
        from torchvision.transforms import (
            Compose,
            Normalize,
            RandomHorizontalFlip,
            RandomResizedCrop,
            ToTensor,
            v2,
        )

        crop, numbers = TrainCrop(), sample.numbers
        area = {"scale": crop.scale, "ratio": crop.ratio}
        self._paths = [sample.folder.path(number) for number in numbers]
        self._labels = sample.folder.targets[numbers].tolist()
        self._length = len(sample)
        if form == "pillow":
            self._decode: Callable[[str], Any] = default_loader
            normalise = [ToTensor(), Normalize(IMAGENET_MEAN, IMAGENET_STD)]
            steps = [RandomResizedCrop(size, **area), RandomHorizontalFlip(crop.flip), *normalise]
            self._transform: Any = Compose(steps)
        else:
            self._decode = _decode
            cropped = v2.RandomResizedCrop(size, **area, antialias=True)
            self._transform = v2.Compose([cropped, v2.RandomHorizontalFlip(crop.flip)])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        number = index % len(self._paths)
        return self._transform(self._decode(self._paths[number])), self._labels[number]


def _decode(path: str) -> Any:
    """Decode to uint8 (3, H, W) by torchvision, or by Pillow for formats torchvision lacks."""
    from torchvision import io
    from torchvision.datasets.folder import default_loader
    from torchvision.transforms.functional import pil_to_tensor

    try:
        return io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
    except RuntimeError:
        return pil_to_tensor(default_loader(path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Images counted in one turn; `cpu_s` is the user and system time of all processes."""

    images: int
    seconds: float
    cpu_s: float

    @property
    def images_per_s(self) -> float:
        """The rate."""
        return self.images / self.seconds


class MeasuredLoader:
    """Loader whose images are counted, epoch after epoch; a context manager that ends its workers.

    Its first batch is loaded when it is created. `first_batch_s` is the time from building the
    loader to that batch. It is shorter if another loader of feedline is alive, as loaders share
    their fork server.

    Args:
        ahead: number of batches that the loader may have made ahead.
        unit: number of batches that are made, and arrive, together; counted in these units.
    """

    def __init__(
        self, name: str, build: Callable[[], Iterable[Any]], *, ahead: int = 0, unit: int = 1
    ) -> None:
        self.name, self._ahead, self._unit = name, ahead, unit
        start = time.perf_counter()
        self._loader: Any = build()
        self._batches = _sizes(self._loader)
        try:
            next(self._batches)
        except BaseException:
            self.close()
            raise
        self.first_batch_s = time.perf_counter() - start

    def turn(self, seconds: float) -> Turn:
        """Count images for at least `seconds`."""
        for _ in range(self._ahead + self._unit):
            next(self._batches)
        used, meter = OwnCpuTime(), RateMeter(seconds)
        while meter.add(sum(next(self._batches) for _ in range(self._unit))):
            pass
        return Turn(images=meter.count, seconds=meter.seconds, cpu_s=used.seconds())

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(path, reason) of images that could not be loaded, if the loader skips them."""
        return getattr(self._loader, "skipped", [])

    def close(self) -> None:
        """End the workers."""
        self._batches.close()
        loader, self._loader = self._loader, None  # torch's workers end with its last reference
        if isinstance(loader, DataLoader):
            loader.close()

    def __enter__(self) -> MeasuredLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _sizes(loader: Iterable[Any]) -> Generator[int, None, None]:
    """Yield the number of images of each batch, epoch after epoch, as in training."""
    while True:
        for images, _ in loader:
            yield len(images)


def feedline_loader(
    sample: ImageSample, batch_size: int, size_px: int, workers: int
) -> MeasuredLoader:
    """Return feedline's loader over a sample, in its order; `workers` 0 loads in this process."""
    build = partial(
        DataLoader,
        sample,
        batch_size,
        image_size=size_px,
        shuffle=False,  # the sample is in random order already
        num_workers=workers,
        prefetch=PREFETCH,
        on_error="skip",
        rank=0,  # all images, even if the environment sets a rank
        world_size=1,
        seed=0,
    )
    return MeasuredLoader("feedline", build, ahead=PREFETCH + 1 if workers else 0)


def torch_loader(
    form: str, sample: ImageSample, batch_size: int, size_px: int, workers: int
) -> MeasuredLoader:
    """Return torch's DataLoader over a sample, in its order; raises any error of torch."""

    def build() -> Iterable[Any]:
        return TorchDataLoader(
            TorchImages(form, sample, size_px),  # type: ignore[arg-type]
            batch_size,
            num_workers=workers,
            prefetch_factor=_PREFETCH_FACTOR if workers else None,
            persistent_workers=workers > 0,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about many workers, and about forking
        # Each worker makes its own batch.
        ahead, unit = _PREFETCH_FACTOR * workers, max(1, workers)
        return MeasuredLoader(TORCH_FORMS[form], build, ahead=ahead, unit=unit)


def settle_down() -> None:
    """Wait until all processes of the family are idle, i.e. their prefetch buffers are full."""
    used, deadline = OwnCpuTime(), time.monotonic() + _LONGEST_PAUSE_S
    before_s = 0.0
    while time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        now_s = used.seconds()
        if now_s - before_s <= _TICK_S:
            return
        before_s = now_s
