"""Taking turns, and torch's loader on the same images."""

from __future__ import annotations

import pytest

from feedline.errors import WorkerError
from feedline.images.folder import ImageFolder
from feedline.profile.bench.loaders import ImageSample
from feedline.profile.bench.rate import Turn
from feedline.profile.bench.result import Omission
from feedline.profile.bench.run import TurnPlan, take_turns


class Steady:
    """Counts 100 images a second."""

    def __init__(
        self, name: str, log: list[str], breaks_at: int = -1, error: type[Exception] = WorkerError
    ) -> None:
        self.name = name
        self.first_batch_s = 0.5
        self._log = log
        self._breaks_at = breaks_at
        self._error = error

    def turn(self, seconds: float) -> Turn:
        self._log.append(self.name)
        if self._log.count(self.name) == self._breaks_at:
            raise self._error(f"{self.name} broke\nat length")
        return Turn(images=round(100 * seconds), seconds=seconds, cpu_s=0.0)


def test_loaders_alternate_in_each_round() -> None:
    log: list[str] = []
    heard: list[tuple[int, str]] = []
    loaders = [Steady("a", log), Steady("b", log)]
    rows = take_turns(loaders, TurnPlan(3, 2.0), [], lambda done, what: heard.append((done, what)))
    assert log == ["a", "b"] * 3
    assert heard[0] == (0, "round 1 of 3: a")
    assert heard[-1] == (5, "round 3 of 3: b")
    assert [(row.name, row.loader, len(row.turns)) for row in rows] == [
        ("a", "feedline", 3),
        ("b", "torch", 3),
    ]
    assert rows[0].images_per_s.median == 100.0
    assert rows[0].first_batch_s == 0.5


@pytest.mark.parametrize("error", [WorkerError, OSError, RuntimeError])
def test_torch_failure_skips_torch_but_other_failures_raise(error: type[Exception]) -> None:
    log: list[str] = []
    left_out: list[Omission] = []
    loaders = [Steady("a", log), Steady("b", log, breaks_at=2, error=error)]
    rows = take_turns(loaders, TurnPlan(4, 1.0), left_out, lambda done, what: None)
    assert [row.name for row in rows] == ["a"]
    assert log == ["a", "b", "a", "b", "a", "a"]
    assert [each.what for each in left_out] == ["b"]

    with pytest.raises(error, match="c broke"):
        take_turns(
            [Steady("c", [], breaks_at=1, error=error)],
            TurnPlan(1, 1.0),
            [],
            lambda done, what: None,
        )


def test_torch_variants_match_torchvision_samples(folder: ImageFolder) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from feedline.profile.bench.torch_loaders import FORMS, torchvision_folder

    sample = ImageSample(folder, [13, 2])
    dtypes = {"pillow": torch.float32, "uint8": torch.uint8}
    assert FORMS.keys() == dtypes.keys()
    for form, dtype in dtypes.items():
        dataset = torchvision_folder(form, sample, 48)
        assert len(dataset) == len(sample)
        assert [dataset[k][1] for k in range(4)] == [1, 0, 1, 0]
        image, _ = dataset[3]
        assert image.shape == (3, 48, 48)
        assert image.dtype == dtype
        assert dataset.classes == ["cats", "dogs"]
