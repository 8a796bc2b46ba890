"""Taking turns, bare processes, and torch's loader on the same images."""

from __future__ import annotations

import pytest

from feedline.bench.loaders import BareProcesses, Entry, TurnPlan, bare_rows, take_turns
from feedline.bench.pool import ProcessPool
from feedline.bench.rate import Turn
from feedline.bench.result import Omission
from feedline.bench.survey import ImageSample
from feedline.errors import WorkerError
from feedline.images.folder import ImageFolder


class Steady:
    """Counts 100 images a second."""

    def __init__(
        self, name: str, log: list[str], breaks_at: int = -1, error: type[Exception] = WorkerError
    ) -> None:
        self.name = name
        self.first_batch_s: float | None = 0.5
        self._log = log
        self._breaks_at = breaks_at
        self._error = error

    def turn(self, seconds: float) -> Turn:
        self._log.append(self.name)
        if self._log.count(self.name) == self._breaks_at:
            raise self._error(f"{self.name} broke\nat length")
        return Turn(images=round(100 * seconds), seconds=seconds, cpu_s=0.0)


def test_contestants_alternate_in_each_round() -> None:
    log: list[str] = []
    heard: list[tuple[int, str]] = []
    entries = [
        Entry(Steady("a", log), "feedline", "originals"),
        Entry(Steady("b", log), "bare", "originals"),
    ]
    rows = take_turns(entries, TurnPlan(3, 2.0), [], lambda done, what: heard.append((done, what)))
    assert log == ["a", "b"] * 3
    assert heard[0] == (0, "round 1 of 3: a")
    assert heard[-1] == (5, "round 3 of 3: b")
    assert [(row.name, row.loader, len(row.turns)) for row in rows] == [
        ("a", "feedline", 3),
        ("b", "bare", 3),
    ]
    assert rows[0].images_per_s.median == 100.0
    assert rows[0].first_batch_s == 0.5


@pytest.mark.parametrize("error", [WorkerError, OSError])
def test_torch_failure_skips_torch_but_other_failures_raise(error: type[Exception]) -> None:
    log: list[str] = []
    left_out: list[Omission] = []
    ours = Entry(Steady("a", log), "feedline", "originals")
    theirs = Entry(Steady("b", log, breaks_at=2, error=error), "torch", "originals")
    rows = take_turns([ours, theirs], TurnPlan(4, 1.0), left_out, lambda done, what: None)
    assert [row.name for row in rows] == ["a"]
    assert log == ["a", "b", "a", "b", "a", "a"]
    assert left_out == [Omission("b", "b broke")]

    with pytest.raises(error, match="c broke"):
        take_turns(
            [Entry(Steady("c", [], breaks_at=1, error=error), "bare", "originals")],
            TurnPlan(1, 1.0),
            [],
            lambda done, what: None,
        )


@pytest.mark.parametrize(
    ("batch_size", "slots", "processes", "rows"), [(64, 4, 2, 128), (1, 4, 8, 1), (64, 4, 64, 4)]
)
def test_bare_processes_write_as_much_memory_as_the_loader(
    batch_size: int, slots: int, processes: int, rows: int
) -> None:
    assert bare_rows(batch_size, slots, processes) == rows


@pytest.mark.slow
def test_bare_processes_make_rows(folder: ImageFolder, image_pool: ProcessPool) -> None:
    bare = BareProcesses(image_pool, ImageSample(folder, [0, 1, 2]), name="bare", size=32, rows=4)
    turn = bare.turn(0.01)
    assert turn.images >= 1
    assert turn.seconds >= 0.01
    assert turn.cpu_s > 0


def test_torch_variants_match_torchvision_samples(folder: ImageFolder) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from feedline.bench.loaders import FORMS
    from feedline.bench.torch_loaders import torchvision_folder

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
