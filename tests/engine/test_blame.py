"""Which sample an error names: the one that raised it, and no neighbour."""

import re

import pytest

from feedline.loader import DataLoader
from feedline.timing import RECORD_SWITCH
from sets import Made

KEYS = [40, 10, 30, 20, 50]


class Raising:
    """Raises for one index, with words that do not give it away."""

    def __init__(self, bad):
        self.bad = bad

    def __call__(self, index):
        if index == self.bad:
            raise ValueError("cannot be read")
        return index


@pytest.mark.parametrize("recorded", ["0", "1"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("bad", KEYS)
def test_a_loader_names_the_sample_that_raised(bad, workers, recorded, monkeypatch):
    monkeypatch.setenv(RECORD_SWITCH, recorded)
    options = {"num_workers": workers, "collate_fn": list}
    with DataLoader(Made(60, Raising(bad)), batch_sampler=[KEYS, [1, 2]], **options) as loader:
        batches = iter(loader)
        with pytest.raises(ValueError, match="cannot be read") as caught:
            next(batches)
        said, _, _ = str(caught.value).partition("Original Traceback")
        said += "".join(getattr(caught.value, "__notes__", ()))
        assert re.findall(r"sample with index (\d+) of Made\.", said) == [str(bad)]
        assert next(batches) == [1, 2]
