"""Settings in a file: written by a tuning, read by a loader."""

import copy
import json
import os
import pickle
import warnings

import pytest

from feedline import DataLoader
from feedline.errors import UsageError
from feedline.loader.saved_settings import SavedSettings
from row_sources import Rows


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(SavedSettings(num_workers=2, prefetch=5, task_ms=12.5).as_text())
    return path


def test_missing_arguments_are_read_from_file(file):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with DataLoader(Rows(64), 8, image_size=16, settings=file) as loader:
            assert (loader.num_workers, loader.prefetch) == (2, 5)
            assert not loader.adapts
            assert "5 batches (prefetch)" in loader.explain()
            assert sum(1 for _ in loader) == 8
            for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
                with other:
                    assert (other.num_workers, other.prefetch) == (2, 5)


def test_arguments_override_a_file_which_may_ask_for_no_workers(file):
    with DataLoader(Rows(64), 8, image_size=16, settings=file, num_workers=1) as loader:
        assert (loader.num_workers, loader.prefetch) == (1, 5)
    with DataLoader(Rows(64), 8, image_size=16, settings=file, num_workers=0) as loader:
        assert (loader.num_workers, loader.prefetch) == (0, None)
    file.write_text(SavedSettings(num_workers=0).as_text())
    for given, workers in (({}, 0), ({"num_workers": 1}, 1)):
        with DataLoader(Rows(64), 8, image_size=16, settings=file, **given) as loader:
            assert loader.num_workers == workers
            assert sum(1 for _ in loader) == 8


def test_whole_batches_have_settings_of_their_own_that_rows_reject(tmp_path):
    file = tmp_path / "tuned.json"
    saved = SavedSettings(num_workers=2, prefetch_factor=4, pin_memory=False)
    file.write_text(saved.as_text())
    with DataLoader(list(range(64)), 8, settings=str(file)) as loader:
        assert (loader.num_workers, loader.prefetch_factor, loader.pin_memory) == (2, 4, False)
        assert sum(1 for _ in loader) == 8
    with pytest.raises(UsageError, match="prefetch_factor 4") as error:
        DataLoader(Rows(64), 8, image_size=16, settings=file)
    assert str(file) in str(error.value)


def test_settings_without_effect_on_whole_batches_are_reported(file):
    with pytest.warns(UserWarning, match="prefetch=5 and task_ms=12.5.*no effect") as caught:
        loader = DataLoader(list(range(64)), 8, settings=file)
    assert caught[0].filename == __file__
    with loader, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert sum(1 for _ in loader) == 8
        copy.copy(loader).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        DataLoader(list(range(64)), 8, settings=file, num_workers=0).close()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_is_read_and_missing_writer_is_reported(tmp_path, file):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is a pipe without a writer"):
        DataLoader(Rows(64), 8, image_size=16, settings=pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # written data stays in the pipe
    pipe.write_bytes(file.read_bytes())
    assert SavedSettings.read(pipe).prefetch == 5
    os.close(reader)


def warnings_of(file, **found_on):
    said = json.loads(file.read_text())
    said["found_on"] |= found_on
    file.write_text(json.dumps(said))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SavedSettings.read(file)
    return [str(each.message) for each in caught]


def test_other_machine_is_reported(file):
    here = json.loads(file.read_text())["found_on"]["memory_bytes"]
    for times, differs in ((1.05, False), (4.0, True), (0.3, True)):
        said = warnings_of(file, memory_bytes=int(times * here))
        assert ["memory" in each and "GiB in the file" in each for each in said] == [True] * differs
    assert warnings_of(file, memory_bytes=None) == []  # which is not known
    (said,) = warnings_of(file, cores=4096, cpu="an abacus")
    assert "an abacus" in said
    assert "cores 4096 in the file" in said
    with pytest.warns(UserWarning, match="an abacus") as caught:
        DataLoader(Rows(64), 8, image_size=16, settings=file).close()
    assert caught[0].filename == __file__


def test_missing_gpu_is_reported(file, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    (said,) = warnings_of(file, gpu="an abacus with CUDA")
    assert "GPU 'an abacus with CUDA' in the file" in said
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert warnings_of(file) == []  # which one it is, is not known yet


def changed(**parts):
    said = json.loads(SavedSettings(num_workers=2).as_text())
    return json.dumps(said | parts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a valid settings file"),
        ("{}", "feedline_settings"),
        ("[" * 100_000, "is not a valid settings file"),
        (" " * (1 << 21), "larger than 1 MiB"),
        (changed(feedline_settings=2), "version 2"),
        (changed(loader={"num_workers": 10**9}), "num_workers"),
        (changed(loader={"num_workers": 2, "shuffle": True}), "shuffle"),
        (changed(more=1), "more"),
    ],
)
def test_invalid_file_is_reported(tmp_path, text, said):
    file = tmp_path / "tuned.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=said) as error:
        DataLoader(Rows(64), 8, image_size=16, settings=file)
    assert str(file) in str(error.value)
    assert "feedline tune" in str(error.value)


def test_missing_file(tmp_path):
    missing = (tmp_path / "none.json", tmp_path, tmp_path / "no\0name")
    for path, said in (*((each, "cannot be read") for each in missing), (7, "path of a file")):
        with pytest.raises(UsageError, match=said):
            DataLoader(Rows(64), 8, image_size=16, settings=path)
