"""Invalid arguments of a loader: each error names the expected and the given value."""

import inspect
import math
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler

from feedline.errors import ResourceError, UsageError
from feedline.loader import DataLoader
from row_sources import Rows
from sets import Counting

NO_TIMES = [0, math.nan, math.inf, True, "50", Fraction(0)]


class Unpicklable(Rows):
    def __init__(self):
        super().__init__(4)
        self.transform = lambda image: image


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": True}, "batch_size must be .* got True"),
        ({"seed": 0.5}, r"seed must be a whole number or None, got 0\.5"),
        ({"rank": 1}, "rank must be from 0 to world_size - 1 = 0, got 1"),
        ({"rank": "0", "world_size": 2}, "rank must be .* got '0'"),
        ({"world_size": 0}, "world_size must be a whole number of at least 1, got 0"),
        ({"num_workers": -1}, 'num_workers must be "auto" or a whole number from 0 to 512, got -1'),
        ({"num_workers": "many"}, "num_workers must be .* got 'many'"),
        ({"num_workers": 513}, "a whole number from 0 to 512, got 513"),
        ({"prefetch": 65}, "prefetch must be a whole number from 1 to 64, got 65"),
        ({"prefetch_factor": 4, "num_workers": 1}, r"prefetch_factor 4 has no effect.*prefetch="),
        ({"on_error": "ignore"}, 'on_error must be "raise" or "skip", got \'ignore\''),
        ({"timeout": float("nan")}, "timeout must be .* got nan"),
        *(({"task_ms": value}, r"task_ms must be .* above 0 .*, got") for value in NO_TIMES),
        (
            {"start_method": "thread"},
            r"start_method must be None or one of .*'spawn'.* got 'thread'",
        ),
        ({"collate_fn": list}, "collate_fn <class 'list'> has no effect: Rows makes batches"),
        ({"image_size": 0}, "image_size must be a whole number from 1 to 16384, got 0"),
        ({"max_image_size": 16385}, "max_image_size must be .* got 16385"),
        ({"device": 1.5}, r"device must be .* got 1\.5"),
        ({"device": "meta"}, "device must be .* got 'meta'"),
        (
            {"dtype": torch.int32, "device": "cpu"},
            r"dtype must be a floating-point type, got torch\.int32",
        ),
        ({"mean": (0.5, 0.5), "device": "cpu"}, r"one number per channel.*mean=\(0\.5, 0\.5\)"),
        ({"std": (0.5, 0.5, 0.0), "device": "cpu"}, r"std above 0; got .*std=\(0\.5, 0\.5, 0\.0\)"),
        ({"image_size": None}, r"Rows needs an image size: set image_size=224, or a schedule"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean .* has no effect without device="),
        ({"in_order": False}, "in_order False has no effect with a seed or a schedule"),
        ({"schedule": "8x1", "image_size": 8}, "schedule= and image_size="),
        ({"drop_last": True, "batch_size": 11}, r"drop_last=True.* 11 .* 10 samples"),
    ],
)
def test_invalid_argument_is_named_with_value(options, said):
    size = {} if "schedule" in options else {"image_size": 8}
    with pytest.raises(UsageError, match=said):
        DataLoader(Rows(10), **{"num_workers": 0, "seed": 0, **size, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": np.int64(8)}, r"batch_size must be .* got (np\.int64\()?8"),
        ({"num_workers": 1.5}, r'num_workers must be "auto" or a whole number .* got 1\.5'),
        ({"prefetch_factor": 1025}, "prefetch_factor must be .* from 1 to 1024 .*got 1025"),
        ({"prefetch_factor": 0}, "prefetch_factor must be .* got 0"),
        ({"seed": 0.5}, "seed must be a whole number or None"),
        ({"schedule": "x"}, "cannot read 'x'"),
        ({"device": "cpu"}, 'device "cpu" .*This range uses the dataset engine'),
        ({"device": "cpu", "std": 1}, "std 1 is only for feedline sources"),
        # torch's own words
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"num_workers": 0, "prefetch_factor": 2}, "only be specified in multiprocessing"),
    ],
)
def test_the_numbers_for_any_other_dataset_are_whole(options, said):
    with pytest.raises(ValueError, match=said):
        DataLoader(range(10), **{"num_workers": 1, **options})


WINDOW = {"shuffle": "window:512"}
WEIGHTS = {"weights": [1.0] * 10, "seed": 0}
SAMPLERS = [
    {"sampler": [1, 2]},
    {"batch_sampler": [[1], [2]], "batch_size": 1},
]


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        *(
            (Counting(10), {name: value}, f"{name} {value!r} .*IterableDataset")
            for name, value in (("seed", 1), ("image_size", 8), ("on_error", "skip"))
        ),
        (Counting(10), {"device": "cpu"}, "device 'cpu' .*IterableDataset"),
        *(
            (range(10), {"shuffle": name, **options}, f"None or \"window:N\", .* got '{name}'")
            for name in ("windows", "window:0", "window:16k", "")
            for options in ({}, {"seed": 0}, {"schedule": "4x1"})
        ),
        (range(10), WINDOW, "'window:512' .*: add seed=0 or a schedule$"),
        (Rows(10), {**WINDOW, "image_size": 4}, "'window:512' .*: add seed=0"),
        *(
            (range(10), {**WINDOW, **each}, "remove the sampler and add seed=0")
            for each in SAMPLERS
        ),
        (range(10), {**WINDOW, "batch_size": None}, "set a batch_size and add seed=0"),
        (range(10), {**WINDOW, "batch_size": None, "seed": 1}, "set a batch_size$"),
        (Counting(10), WINDOW, "use a map-style dataset and add seed=0"),
        (range(10), {**WEIGHTS, "seed": None}, "^weights= .*: add seed=0"),
        (range(10), {**WEIGHTS, "shuffle": False}, "^shuffle "),
        (range(10), {**WEIGHTS, "shuffle": "window:256"}, "window"),
        *((range(10), {**WEIGHTS, **each}, "remove the sampler$") for each in SAMPLERS),
        (range(10), {**WEIGHTS, "batch_size": None}, "set a batch_size$"),
        (range(10), {"seed": 0, "replacement": False}, "^replacement "),
        (range(10), {**WEIGHTS, "replacement": None}, "replacement"),
        (range(10), {**WEIGHTS, "weights": [1.0] * 9}, "9 weights for 10 samples"),
        (range(10), {**SAMPLERS[1], "schedule": "ownx1@4,ownx1@2"}, r"\(ownx1@4, ownx1@2\)"),
        *(
            (Rows(10), {"image_size": 4, name: list}, "has no effect without device=")
            for name in ("pixel_transform", "batch_transform")
        ),
        *(
            (Rows(10), {"image_size": 4, "device": "cpu", name: 7}, f"{name} must be a function")
            for name in ("pixel_transform", "batch_transform")
        ),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(dataset, options, said):
    with pytest.raises(ValueError, match=said):
        DataLoader(dataset, **{"batch_size": 4, **options})


def rows(**options):
    return DataLoader(Rows(10), 4, image_size=4, num_workers=0, prefetch=4, **options)


def batches(**options):
    return DataLoader(range(10), 4, **options)


NOT_WHOLE = [0, 1025, True, 1.5, math.nan]


@pytest.mark.parametrize(
    ("make", "name", "value", "said"),
    [
        *(
            (rows, "set_epoch", each, "epoch must be a whole number of at least 0, got")
            for each in (-1, 1.0, True, None, np.int64(1))
        ),
        *(
            (rows, "set_image_size", each, "size must be a whole number from 1")
            for each in (0, 4.0, True)
        ),
        *((rows, "num_workers", each, "num_workers") for each in (-1, "many", None, 513)),
        *((rows, "task_ms", each, "task_ms must be .* above 0 .*, got") for each in NO_TIMES),
        (batches, "task_ms", 5, "task_ms 5 has no effect .*one task"),
        (rows, "prefetch", 0, "prefetch must be a whole number from 1 to 64, got 0"),
        *(
            (rows, "prefetch", each, f"prefetch must be .* got {each}")
            for each in (True, 2.0, math.nan)
        ),
        (rows, "prefetch", 5, "prefetch 5 is larger than 4.*build it with prefetch=5"),
        (batches, "prefetch", 2, "prefetch 2 has no effect.*dataset engine.*prefetch_f"),
        *(
            (
                lambda: batches(num_workers=1),
                "prefetch_factor",
                each,
                "prefetch_factor must be None or a whole number",
            )
            for each in NOT_WHOLE
        ),
        (batches, "prefetch_factor", 2, "no effect without workers"),
        (rows, "prefetch_factor", 4, "prefetch_factor 4 has no effect here"),
        *(
            (rows, name, "1", name)
            for name in ("seed", "schedule", "image_size", "device", "rank", "weights")
        ),
        (rows, "on_error", "ignore", "on_error"),
        (rows, "timeout", "long", "timeout"),
    ],
)
def test_a_setting_that_is_refused_changes_nothing(make, name, value, said):
    with make() as loader:
        before = getattr(loader, name)
        if callable(before):
            with pytest.raises(UsageError, match=said):
                before(value)
        else:
            if make is rows:  # its own value is accepted
                setattr(loader, name, before)
            with pytest.raises(UsageError, match=said):
                setattr(loader, name, value)
            assert getattr(loader, name) == before
        assert len(list(loader)) == 3


@pytest.mark.parametrize("data", [range(4), Rows(4)])
def test_timeout_without_workers_is_refused_by_the_iteration(data):
    size = {} if isinstance(data, range) else {"image_size": 8}
    with DataLoader(data, num_workers=0, timeout=5, **size) as loader:
        with pytest.raises(UsageError, match="timeout 5 has no effect without workers"):
            iter(loader)
        loader.timeout = 0
        assert len(list(loader)) == 4


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_too_many_workers_are_rejected_when_they_start():
    loader = DataLoader(range(10), num_workers=513)
    with pytest.raises((UsageError, ResourceError), match="num_workers"):  # also of their memory
        next(iter(loader))


class Long:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __getitem__(self, index):
        return index


class Lengthless:
    def __getitem__(self, index):
        return index


class SourceWithoutLength:
    fields = load = name = fingerprint = staticmethod(print)


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Long(32.0), {}, r"Long.__len__ returns 32\.0"),
        (Long("32"), {}, "Long.__len__ returns '32'"),
        (Long(-3), {"shuffle": True}, "Long.__len__ returns -3"),
        (Long(None), {"seed": 1}, "Long.__len__ returns None"),
        (Long(None), {"schedule": "8x1"}, "Long.__len__ returns None"),
        (Lengthless(), {}, "a Lengthless has no length: .* __len__, .*IterableDataset"),
        (SourceWithoutLength(), {}, "a SourceWithoutLength: it has no __len__"),
        (Rows(0), {"image_size": 4}, "has no samples"),
        (None, {}, "from a NoneType: it has no __getitem__; pass a Dataset, a list"),
        (None, {"sampler": [0]}, "from a NoneType: it has no __getitem__"),
        (iter([1]), {}, "from a list_iterator: it has no __getitem__; .*a torch IterableDataset"),
    ],
)
def test_invalid_dataset_is_named_with_missing_methods(dataset, options, said):
    with pytest.raises(UsageError, match=said):
        next(iter(DataLoader(dataset, **options)))


def test_loader_accepts_any_dataset_like_torch():
    for dataset in (Mock(), object(), Lengthless()):
        assert DataLoader(dataset).dataset is dataset


def test_unsized_or_endless_sampler_is_inspected_once():
    class Own(Sampler[list[int]]):
        sampler = property(lambda self: self)

        def __iter__(self):
            return iter([[0, 1], [2]])

    with DataLoader(list(range(3)), batch_sampler=Own()) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2]]
        loader.state_dict()
    assert DataLoader(list(range(3)), batch_sampler=Mock()).batch_sampler.sampler is not None


def test_the_iterator_of_a_subclass_is_used():
    class Letters(DataLoader):
        def _get_iterator(self):
            return iter("ab")

    class Told(DataLoader):
        def _get_iterator(self):
            return super()._get_iterator()

    assert list(Letters([1, 2, 3])) == ["a", "b"]
    for data in (list(range(4)), Counting(4)):
        with Told(data, seed=None) as loader:
            batches = iter(loader)
            next(batches)
            assert loader.state_dict()["step"] == 1
            assert len(list(batches)) == 3


def test_wrapped_source_is_accepted():
    class Behind:
        def __init__(self, source):
            self.source = source

        def __len__(self):
            return len(self.source)

        def __getattr__(self, name):
            if name == "source":
                raise AttributeError(name)
            return getattr(self.source, name)

    with DataLoader(Behind(Rows(6)), 3, image_size=4) as loader:
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2], [3, 4, 5]]


def test_length_may_be_set_later():
    assert next(iter(DataLoader(Lengthless(), 2, sampler=[3, 4]))).tolist() == [3, 4]
    assert list(DataLoader(Lengthless(), batch_sampler=[[0], [1, 2]]))[1].tolist() == [1, 2]
    for unknown in (None, -1, RuntimeError("not set up")):
        data = Long(unknown)
        loader = DataLoader(data, 2)
        data.length = 4
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_numpy_integers_are_accepted_like_in_torch():
    one, most = np.int64(1), np.int64(1024)
    with DataLoader(range(10), 5, num_workers=one, prefetch_factor=most) as loader:
        assert type(loader.num_workers) is int
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        loader.num_workers = np.int64(2)
        assert type(loader.num_workers) is int
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_missing_cuda_raises_with_hint():
    with pytest.raises(UsageError, match=r"(?s)no accelerator.*nvidia-smi"):
        DataLoader(Rows(10), num_workers=0, image_size=8, device="cuda")


def test_auto_uses_available_cores(monkeypatch):
    monkeypatch.setattr("feedline.engine.defaults.usable_cores", lambda: 1)
    assert DataLoader(Rows(10), image_size=4, num_workers="auto").num_workers == 1
    assert DataLoader(Rows(10), schedule="4x1").num_workers == 1


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_lambda_in_source_is_named_with_its_attribute(method):
    with pytest.raises(UsageError, match=r"Unpicklable\.transform cannot be sent.*num_workers=0"):
        DataLoader(Unpicklable(), image_size=4, num_workers=1, start_method=method)


def test_unknown_argument_suggests_a_close_one():
    options = {"workers": 4}
    with pytest.raises(TypeError, match=r"argument 'workers'.*num_workers="):
        DataLoader(Rows(4), 2, **options)
    with pytest.raises(TypeError, match=r"argument 'x'$"):
        DataLoader(Rows(4), 2, x=1)
    # The form in which Lightning looks for the name.
    with pytest.raises(TypeError, match=r"__init__\(\) got multiple values .* 'dataset'"):
        DataLoader(Rows(4), 2, dataset=Rows(4))
    assert "num_workers" in inspect.signature(DataLoader).parameters
