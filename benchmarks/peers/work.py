"""Request to a peer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["RATIO", "SCALE", "Work"]

SCALE = (0.25, 1.0)
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Work:
    """Images to crop and resize, and the resources to use.

    Args:
        kind: "jpeg": `folder` holds one sub-folder of JPEG files per class. "npy": the same with
            .npy files, uint8 (height, width, 3) of any size. "raw": it holds images.npy, uint8
            (n, height, width, 3), and labels.npy, int64 (n,). "cache": it is a feedline cache.
        folder: folder of the images.
        size: image size of the batches, in pixels.
        batch_size: images per batch.
        workers: number of processes, or of threads for peers that use threads.
        repeat: repetitions of the images per epoch, if the peer supports it: an epoch of few images
            would measure how its end is handled.
        scratch: an empty folder for the peer, removed afterwards.
    """

    kind: str
    folder: str
    size: int
    batch_size: int
    workers: int
    repeat: int
    scratch: str

    @classmethod
    def of(cls, text: str) -> Work:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))

    def files(self) -> list[tuple[str, int]]:
        """Paths and class numbers, as in torchvision's ImageFolder."""
        classes = sorted(path for path in Path(self.folder).iterdir() if path.is_dir())
        return [
            (str(path), label)
            for label, root in enumerate(classes)
            for path in sorted(root.iterdir())
        ]
