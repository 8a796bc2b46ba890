"""NVIDIA DALI on the CPU, in threads: decodes only what the crop needs.

Tuned as DALI's guide for image classification has it: files mapped, decoding and random crop
fused, so that a JPEG's blocks outside the crop are skipped, batches prefetched by the dynamic
executor and handed to torch without a copy. DALI's reader goes round by itself, so that there is
no epoch edge; it shuffles within a buffer of files.

Pixels differ from torchvision's: chroma is not smoothed at decoding, which is DALI's default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "DALI"
NEEDS = ("torch", "nvidia.dali")
PIXELS = "uint8, decoded in part, triangular filter"
KINDS = ("jpeg",)


def batches(work: Work) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    files, labels = zip(*work.files(), strict=True)

    @pipeline_def(
        batch_size=work.batch_size,
        num_threads=work.workers,
        device_id=None,
        prefetch_queue_depth=2,
        exec_dynamic=True,
    )
    def crops() -> tuple[Any, Any]:
        data, label = fn.readers.file(files=list(files), labels=list(labels), random_shuffle=True)
        images = fn.decoders.image_random_crop(
            data, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
        )
        images = fn.resize(
            images, size=[work.size, work.size], interp_type=types.DALIInterpType.INTERP_TRIANGULAR
        )
        return fn.flip(images, horizontal=fn.random.coin_flip()), label

    for (batch,) in DALIClassificationIterator(crops()):
        yield batch["data"]
