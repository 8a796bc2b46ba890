"""Functions that are named on the command line."""

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from feedline import DataLoader
from feedline.cli.tune_search import build_loader, import_function, is_function_name
from feedline.errors import UsageError

CODE = """
import feedline
from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(9))


class Within:
    def step(batch):
        return batch


numbers = list(range(300))
loader = lambda: DataLoader(numbers, 4)
dataset = lambda: numbers
stream = Numbers


def missing():
    return feedline.ImageFolder("no such folder")


def raising():
    raise OSError("no such disk")


nothing = lambda: None
few = lambda: [1, 2, 3]
empty = lambda: []
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "feedline_named_code.py").write_text(CODE)
    (tmp_path / "feedline_named_broken.py").write_text("import feedline_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_function_name_has_module_and_attribute():
    assert is_function_name("a.b:c.d")
    for other in ("a", "a/b", "C:\\data", "a:", ":b", "a:b:c", "gs://a/b"):
        assert not is_function_name(other), other
    assert import_function("feedline_named_code:Within.step")(7) == 7


def test_result_of_function_becomes_loader():
    given = build_loader("feedline_named_code:loader")
    assert type(given) is TorchDataLoader
    assert given.batch_size == 4
    assert type(build_loader("feedline_named_code:stream")) is TorchDataLoader
    with build_loader("feedline_named_code:dataset", batch_size=32) as own:
        assert isinstance(own, DataLoader)
        assert (own.batch_size, own.num_workers > 0) == (32, True)
    with pytest.raises(UsageError, match="--batch-size"):
        build_loader("feedline_named_code:loader", batch_size=8)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("feedline_no_module:loader", "not found"),
        ("feedline_named_code:lader", "no function 'lader'"),
        ("feedline_named_code:numbers", "not a function"),
        ("feedline_named_code:nothing", "NoneType"),
        ("feedline_named_code:few", "3 samples, fewer than one batch of 64"),
        ("feedline_named_code:empty", "0 samples"),
    ],
)
def test_invalid_function_is_reported(name, said):
    with pytest.raises(UsageError, match=said):
        build_loader(name)


def test_exception_in_user_code_is_named_with_location():
    said = (
        r"importing 'feedline_named_broken' raised ModuleNotFoundError: .*feedline_no_such_module"
    )
    with pytest.raises(UsageError, match=said):
        import_function("feedline_named_broken:loader")
    said = r"code:raising', .* raised OSError: no such disk\n  [^\n]*, line \d+: raise OSError"
    with pytest.raises(UsageError, match=said) as caught:
        build_loader("feedline_named_code:raising")
    assert "user_code.py" not in str(caught.value)
    with pytest.raises(UsageError, match=r"raised feedline.errors.DatasetError: ") as caught:
        build_loader("feedline_named_code:missing")
    assert str(caught.value).count(", line ") == 1
