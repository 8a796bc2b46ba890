"""FFCV, in threads: one mapped file and a compiled pipeline.

The file holds the images' original JPEG bytes, or raw pixels for work of kinds "raw" and "npy".
FFCV itself would decode and re-encode each JPEG, which changes pixels and size.

Tuned as in FFCV's performance guide for data that fits in memory: `os_cache`, fused crop and
decoding, one thread per core, uint8 to the end. The order is random; quasi-random order saves disk
reads, which do not occur here. The thread pool works on one batch at a time.

Pixels differ from torchvision's: libjpeg-turbo's fast DCT, and OpenCV's area average, which becomes
bilinear if a crop is enlarged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "FFCV"
NEEDS = ("torch", "ffcv")
PIXELS = "uint8, fast DCT, area average"
KINDS = ("jpeg", "raw", "npy")


def beton(work: Work) -> str:
    return str(Path(work.scratch) / "images.beton")


def prepare(work: Work) -> None:
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class JPEGField(RGBImageField):
        """Stores the file at a path unchanged."""

        def encode(self, destination: Any, path: str, malloc: Any) -> None:
            with Image.open(path) as image:
                destination["width"], destination["height"] = image.size
            destination["mode"] = IMAGE_MODES["jpg"]
            data = np.fromfile(path, np.uint8)
            destination["data_ptr"], storage = malloc(data.nbytes)
            storage[:] = data

    samples: list[tuple[Any, int]]
    if work.kind == "raw":
        folder = Path(work.folder)
        images = np.load(folder / "images.npy", mmap_mode="r")
        labels = np.load(folder / "labels.npy")
        samples = list(zip(images, labels.tolist(), strict=True))
        field = RGBImageField(write_mode="raw")
    elif work.kind == "npy":
        samples = [(np.load(path), label) for path, label in work.files()]
        field = RGBImageField(write_mode="raw")
    else:
        samples, field = work.files(), JPEGField()
    writer = DatasetWriter(
        beton(work), {"image": field, "label": IntField()}, num_workers=work.workers
    )
    writer.from_indexed_dataset(samples)


def batches(work: Work) -> Iterator[Any]:
    import numpy as np
    from ffcv.fields import RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    fields = {"image": RGBImageField}
    samples = Reader(beton(work), fields).num_samples
    loader = Loader(
        beton(work),
        work.batch_size,
        num_workers=work.workers,
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(samples, dtype=np.uint64), work.repeat),
        custom_fields=fields,
        drop_last=True,
        pipelines={
            "image": [
                RandomResizedCropRGBImageDecoder((work.size, work.size), SCALE, RATIO),
                RandomHorizontalFlip(),
                ToTensor(),
                ToTorchImage(),
            ],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )
    while True:
        for images, _ in loader:
            yield images
