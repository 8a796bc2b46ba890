"""An installation without a C compiler has no native modules, and loaders say so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import feedline
import preloaded

SCRIPT = """
import json, sys, warnings
import numpy as np
import feedline

images = feedline.ImageArray(np.zeros((4, 40, 40, 3), np.uint8), np.arange(4), feedline.EvalCrop())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        loader = feedline.DataLoader(images, 2, schedule="16x1")
        assert len(list(loader)) == 2
texts = [str(each.message) for each in caught if each.category is RuntimeWarning]
print(json.dumps([texts, loader.explain()]))
"""


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_first_loader_warns_once_without_native_modules(is_compiled, tmp_path):
    package = Path(feedline.__file__).parent
    native = sorted(package.glob("**/*.abi3.so"))
    if len(native) < 6:
        pytest.skip("not compiled")
    start, path = preloaded.run, package.parent
    if not is_compiled:
        start, path = subprocess.run, tmp_path
        ignored = shutil.ignore_patterns("*.so")
        shutil.copytree(package, tmp_path / "feedline", ignore=ignored)
    result = start(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    texts, explained = json.loads(result.stdout.splitlines()[-1])
    assert len(texts) == (not is_compiled)
    for name in ("_jpeg", "_resample", "_lut", "_photometric", "_png"):
        assert (name in explained) == (not is_compiled)
        assert all(name in text and "compiler" in text for text in texts)
