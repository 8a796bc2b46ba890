"""Compare torchvision's segmentation preset in a usual Dataset and with feedline.pair.

    python benchmarks/segmentation.py FOLDER

The preset is that of torchvision's references with base_size=520 and crop_size=480, in v2, with
RandomCrop's padding instead of PadIfSmaller. `recipes.py` measures its speed; this script compares
the output.

Photographs have no masks, so masks are generated: 20 grey levels of a copy 24 times smaller,
enlarged, as palette indices.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline

__all__ = ["Paired", "Usual", "masks_of", "preset"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COARSER, CLASSES = 24, 20

Pairs = list[tuple[str, str]]


def preset() -> v2.Compose:
    """Transform of images and masks for training."""
    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    return v2.Compose(
        [
            v2.RandomResize(260, 1040),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomCrop(480, pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
            v2.ToImage(),
            v2.ToDtype(dtypes, scale=True),
            v2.Normalize(MEAN, STD),
            v2.ToPureTensor(),
        ]
    )


class Usual(Dataset[Any]):
    """JPEGs below a folder with their masks, as usually written."""

    def __init__(self, folder: Path) -> None:
        self.pairs, self.transform = masks_of(folder), preset()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        path, mask = self.pairs[index]
        image = Image.open(path).convert("RGB")
        return self.transform(image, tv_tensors.Mask(Image.open(mask)))


class Paired(Usual):
    """The same dataset with `feedline.pair`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.transform = feedline.pair(self.transform)

    def __getitem__(self, index: int) -> Any:
        path, mask = self.pairs[index]
        return self.transform(path, mask)


@functools.cache
def masks_of(folder: Path) -> Pairs:
    """Pair each JPEG below a folder with a generated mask in a temporary folder."""
    results = [
        path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    pairs = []
    for number, path in enumerate(results):
        mask = Path(made.name) / f"{number}.png"
        _mask(path).save(mask)
        pairs.append((str(path), str(mask)))
    return pairs


def _mask(path: Path) -> Image.Image:
    with Image.open(path) as opened:
        grey = opened.convert("L")
    width, height = grey.size
    coarse = grey.resize((max(2, width // COARSER), max(2, height // COARSER)))
    levels = np.asarray(coarse.resize(grey.size, Image.Resampling.BICUBIC), np.uint16)
    mask = Image.fromarray((levels * CLASSES // 256).astype(np.uint8))
    mask.putpalette([value for level in range(256) for value in 3 * [level]])
    return mask


def main() -> None:
    """Print the difference of images in grey levels for the same seed, and compare the masks.

    Raises:
        ValueError: a mask differs.
    """
    parser = argparse.ArgumentParser(description=main.__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs, searched recursively")
    folder = parser.parse_args().folder
    usual, paired = Usual(folder), Paired(folder)
    scale, means, most = 255 * torch.tensor(STD)[:, None, None], [], 0.0
    for sample in range(len(usual)):
        torch.manual_seed(sample)
        theirs, mask = usual[sample]
        torch.manual_seed(sample)
        ours, other = paired[sample]
        if not torch.equal(mask, other):
            raise ValueError(f"the masks of {usual.pairs[sample]} differ")
        apart = (ours - theirs).abs() * scale
        means.append(float(apart.mean()))
        most = max(most, float(apart.max()))
    mean = statistics.mean(means)
    print(f"{len(means)} samples: all masks equal; images: mean {mean:.4f}, at most {most:.2f}")


if __name__ == "__main__":
    main()
