"""Files of /proc and /sys, written for a test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ADDRESS = "0000:65:00.0"
CARD = {
    f"/sys/bus/pci/devices/{ADDRESS}/class": "0x030200\n",
    f"/sys/bus/pci/devices/{ADDRESS}/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:00:1f.0/class": "0x060100\n",
    "/sys/bus/pci/devices/0000:00:1f.0/vendor": "0x10de\n",
}
DRIVER = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
    "570.86.15  Release Build  (builder@host)  Thu Jan 23 2025\nGCC version:  gcc 12.3.0\n",
    f"/proc/driver/nvidia/gpus/{ADDRESS}/information": "Model: \t\t NVIDIA A100-SXM4-40GB\n"
    f"IRQ:   \t\t 0\nBus Location: \t {ADDRESS}\n",
}


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, by their paths on a machine; the folder."""
    for path, text in files.items():
        inside = root / path.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(os.fsencode(text))
    return root
