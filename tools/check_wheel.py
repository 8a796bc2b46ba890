"""Check an installed wheel: its files, native modules, and the bytes of 50 batches.

    python tools/check_wheel.py [DIGEST]

Runs outside the checkout, so that `import feedline` finds the installed one. Prints the digest of
the batches, which is the same on all platforms; with DIGEST it must be that one.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import files
from pathlib import Path

SCRIPT = """
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

if __name__ == "__main__":
    crop = [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.ToTensor()]
    data = ImageFolder("photos", T.Compose(crop))
    for images, labels in DataLoader(data, 8, shuffle=True, num_workers=2):
        assert images.shape[1:] == (3, 96, 96), images.shape
    print("shapes are right")
"""


def make_photos(folder: Path) -> None:
    """Write 48 images in two classes, as JPEG and PNG; the pixels are the same everywhere."""
    import numpy as np
    from PIL import Image

    draw = np.random.RandomState(0)
    for number in range(48):
        coarse = draw.randint(0, 256, (1 + number % 5, 7, 3), np.uint8)
        image = Image.fromarray(coarse).resize((160 + number, 150), Image.Resampling.BICUBIC)
        path = folder / "ab"[number % 2] / f"{number}.{'jpg' if number % 3 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)


def digest_of_batches(photos: Path) -> str:
    """Digest of 50 batches in two image sizes, by workers and without; both must be equal."""
    import feedline

    digests = set()
    for workers in (0, 2):
        digest = hashlib.sha256()
        data = feedline.ImageFolder(photos, feedline.TrainCrop())
        with feedline.DataLoader(
            data, 6, schedule="64x3,96x4", shuffle=True, seed=1, num_workers=workers
        ) as loader:
            batches = (batch for _ in range(loader.epochs) for batch in loader)
            for _, (images, labels) in zip(range(50), batches, strict=False):
                digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
        digests.add(digest.hexdigest())
    assert len(digests) == 1, f"workers and the training process differ: {digests}"
    return digests.pop()


def main() -> None:
    """Run all checks."""
    import feedline
    from feedline.images.native import NATIVE_MODULES

    installed = files("feedline") or []
    modules = [path for path in installed if path.suffix in (".so", ".pyd")]
    # Five of images, one of order.
    assert len(modules) == len(NATIVE_MODULES) + 1, [str(path) for path in modules]
    assert any(path.name == "py.typed" for path in installed)
    assert any(path.parent.name == "templates" for path in installed)
    for name in NATIVE_MODULES:
        importlib.import_module(f"feedline.images.{name}")
    jpeg = importlib.import_module("feedline.images._jpeg")
    decoder = jpeg.Decoder("")
    assert jpeg.CONTAINED_LIBJPEG, "this wheel does not contain libjpeg-turbo"
    assert decoder.reads_codes, "feedline does not read the Huffman codes"
    print(
        f"feedline {feedline.__version__}, {len(installed)} files, {len(modules)} modules, "
        f"libjpeg-turbo {jpeg.CONTAINED_LIBJPEG}"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_photos(Path("photos"))
        digest = digest_of_batches(Path("photos"))
        Path("script.py").write_text(SCRIPT)
        program = shutil.which("feedline", path=sysconfig.get_path("scripts"))
        assert program, "the command feedline is not installed"
        command = [program, "run", "script.py"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert output.returncode == 0, output.stdout + output.stderr
        assert "shapes are right" in output.stdout, output.stdout + output.stderr
        os.chdir("/")
    print("digest", digest)
    if sys.argv[1:] and sys.argv[1] != digest:
        sys.exit(f"expected the digest {sys.argv[1]}")


if __name__ == "__main__":
    main()
