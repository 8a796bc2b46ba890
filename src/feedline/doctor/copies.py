"""Copies to the GPU, as a loader with `device="cuda"` makes them: pinned, and how fast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from feedline.doctor import batch
from feedline.doctor.check import Check
from feedline.doctor.copy_rate import CopyRate
from feedline.doctor.gpus import Link, link_of

__all__ = ["look_at_copies", "no_copies"]

_SLOW = 0.5
"""A pinned copy comes to 0.8 or more of what its link carries; below half of it something is in the
way: a link that was trained slower, a card behind a shared switch, memory of the other socket."""


def no_copies(why: str, fix: str = "") -> Iterator[Check]:
    """The checks "pinned-memory" and "copy-rate" where nothing was copied."""
    for name in ("pinned-memory", "copy-rate"):
        yield Check(id=name, status="unknown", summary=why, fix=fix)


def look_at_copies(found: CopyRate | str, root: Path = Path("/")) -> Iterator[Check]:
    """The checks "pinned-memory" and "copy-rate".

    Args:
        found: what was measured, just now, so that the link is still awake; or why torch cannot
            use the GPU.
        root: the folder that holds /sys.
    """
    if isinstance(found, str):
        yield Check(id="pinned-memory", status="unknown", summary="torch cannot use the GPU")
        yield Check(
            id="copy-rate",
            status="fail",
            summary=f"there is a GPU, and torch cannot use it: {found}",
            fix="look at `nvidia-smi`, torch.version.cuda and CUDA_VISIBLE_DEVICES",
        )
        return
    if found.problem:
        yield Check(
            id="pinned-memory",
            status="warn",
            summary=found.problem,
            details={"pinned": False},
            fix="raise the limit on locked memory: ulimit -l unlimited, or docker run --ulimit "
            "memlock=-1",
        )
    else:
        yield Check(
            id="pinned-memory",
            status="ok",
            summary="memory of batches can be pinned, so copies run beside the training step",
            details={"pinned": True},
        )
    yield _rate(found, link_of(found.address, root))


def _rate(found: CopyRate, link: Link | None) -> Check:
    carries = None if link is None else _link_bytes_per_s(link)
    rate = found.pinned_bytes_per_s or found.pageable_bytes_per_s
    image_bytes = batch.slot_bytes() / batch.ROWS
    details = {
        "gpu": found.device,
        "pinned_bytes_per_s": _whole(found.pinned_bytes_per_s),
        "pageable_bytes_per_s": _whole(found.pageable_bytes_per_s),
        "link_bytes_per_s": _whole(carries),
        "images_per_s": round(rate / image_bytes),
        "image_px": batch.SIZE_PX,
    }
    pinned = (
        "not pinned" if found.pinned_bytes_per_s is None else f"{_per_s(rate)} from pinned memory"
    )
    line = (
        f"{found.device}: {pinned}, {_per_s(found.pageable_bytes_per_s)} from other: "
        f"{rate / image_bytes:,.0f} images of {batch.SIZE_PX} px a second, as bytes"
    )
    if carries is not None and rate < _SLOW * carries:
        return Check(
            id="copy-rate",
            status="warn",
            summary=f"{line}; its link carries {_per_s(carries)}",
            details=details,
            fix="bind the training to the socket that the GPU hangs on (nvidia-smi topo -m, "
            "numactl --cpunodebind), and end what else copies",
        )
    return Check(id="copy-rate", status="ok", summary=line, details=details)


def _link_bytes_per_s(link: Link) -> float | None:
    """What a link carries: of ten bits eight are data up to 5 GT/s, of 130 bits 128 above."""
    if link.rate_gt_per_s is None:
        return None
    data = 0.8 if link.rate_gt_per_s <= 5 else 128 / 130
    return link.lanes * link.rate_gt_per_s * 1e9 / 8 * data


def _per_s(rate: float) -> str:
    return f"{decimal(round(rate))}/s"


def _whole(rate: float | None) -> int | None:
    return None if rate is None else round(rate)
