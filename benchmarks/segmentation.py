"""torchvision's segmentation preset, as a Dataset is usually written and with feedline.pair.

The preset is that of torchvision's references for base_size=520 and crop_size=480, in v2, with
RandomCrop's own padding in the place of the references' PadIfSmaller. `recipes.py` measures it.

Masks are made, for photographs that have none: 20 grey levels of a copy that is 24 times smaller,
enlarged, as indices of a palette.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline

__all__ = ["NAME", "Paired", "Usual", "datasets", "difference", "masks_of", "preset"]

NAME = "segmentation, torchvision's preset"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COARSER, CLASSES = 24, 20

Pairs = list[tuple[str, str]]


def preset() -> v2.Compose:
    """What images and masks are trained with."""
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
    """As it is written everywhere."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs, self.transforms = pairs, preset()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        path, mask = self.pairs[index]
        image = Image.open(path).convert("RGB")
        return self.transforms(image, tv_tensors.Mask(Image.open(mask)))


class Paired(Dataset[Any]):
    """The same with two lines changed."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs, self.transforms = pairs, feedline.pair(preset())

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        path, mask = self.pairs[index]
        return self.transforms(path, mask)


def datasets(pairs: Pairs) -> tuple[Usual, Paired]:
    """Both."""
    return Usual(pairs), Paired(pairs)


@contextlib.contextmanager
def masks_of(folder: Path) -> Iterator[Pairs]:
    """Each JPEG below a folder with a mask, which lies in a temporary folder meanwhile."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    with tempfile.TemporaryDirectory() as made:
        pairs = []
        for number, path in enumerate(found):
            mask = Path(made) / f"{number}.png"
            _mask(path).save(mask)
            pairs.append((str(path), str(mask)))
        yield pairs


def _mask(path: Path) -> Image.Image:
    with Image.open(path) as opened:
        grey = opened.convert("L")
    width, height = grey.size
    coarse = grey.resize((max(2, width // COARSER), max(2, height // COARSER)))
    levels = np.asarray(coarse.resize(grey.size, Image.Resampling.BICUBIC), np.uint16)
    mask = Image.fromarray((levels * CLASSES // 256).astype(np.uint8))
    mask.putpalette([value for level in range(256) for value in 3 * [level]])
    return mask


def difference(usual: Usual, paired: Paired) -> float:
    """Of the images' pixels after the same seed, in grey levels in the mean over 100 samples.

    Raises:
        ValueError: a mask differs.
    """
    scale, apart = 255 * torch.tensor(STD)[:, None, None], []
    for sample in range(0, len(usual), max(1, len(usual) // 100)):
        torch.manual_seed(sample)
        theirs, mask = usual[sample]
        torch.manual_seed(sample)
        ours, other = paired[sample]
        if not torch.equal(mask, other):
            raise ValueError(f"the masks of sample {sample} differ")
        apart.append(float(((ours - theirs).abs() * scale).mean()))
    return statistics.mean(apart)
