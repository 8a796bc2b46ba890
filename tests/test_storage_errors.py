"""Errors of the storage that may pass are retried, and never count as a broken file."""

import errno
import os
from contextlib import contextmanager

import pytest

from feedline import DataLoader, ImageFolder, build_cache
from feedline.errors import StorageError
from sets import Made

PASSING = [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]


@contextmanager
def failing(monkeypatch, name, number, is_due):
    """Let `os.open` of images, or `os.read`, raise an error at the calls that are due."""
    real, calls = getattr(os, name), [0]

    def call(first, *arguments, **options):
        is_image = name == "read" or os.fsdecode(first).endswith((".jpg", ".tar"))
        if is_image:
            calls[0] += 1
            if is_due(calls[0]):
                raise OSError(number, os.strerror(number))
        return real(first, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield calls


def loader(source, **options):
    options = {"image_size": 16, "seed": 0, "shuffle": False, "num_workers": 0, **options}
    return DataLoader(source, 4, **options)


@pytest.mark.parametrize("number", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["open", "read"])
def test_passing_error_is_retried(jpeg_folder, monkeypatch, name, number):
    with (
        loader(ImageFolder(jpeg_folder), on_error="skip") as batches,
        failing(monkeypatch, name, number, lambda call: call % 7 == 3) as calls,
    ):
        assert [len(labels) for _, labels in batches] == [4, 4, 4]
        assert batches.skipped == []
        assert calls[0] > 12


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_lasting_error_is_never_skipped(jpeg_folder, monkeypatch, on_error):
    source = ImageFolder(jpeg_folder)
    with loader(source, on_error=on_error) as batches:
        with failing(monkeypatch, "open", errno.ESTALE, lambda call: call > 5):
            rows = iter(batches)
            next(rows)
            with pytest.raises(StorageError) as caught:
                next(rows)
        assert source.name(5) in str(caught.value)
        assert os.strerror(errno.ESTALE) in str(caught.value)
        assert len(list(rows)) == 2
        assert batches.skipped == []


def stale(index):
    if index == 5:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return index


@pytest.mark.parametrize("workers", [0, 1])
def test_storage_error_of_a_dataset_is_not_skipped(workers):
    with DataLoader(Made(8, stale), 4, num_workers=workers, on_error="skip") as batches:
        rows = iter(batches)
        next(rows)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            next(rows)
        assert batches.skipped == []


def test_copies_are_made_in_spite_of_passing_errors(jpeg_folder, tmp_path, monkeypatch):
    options = {"workers": 0, "on_error": "skip"}
    with failing(monkeypatch, "open", errno.EIO, lambda call: call % 5 == 2):
        assert build_cache(jpeg_folder, tmp_path / "one", (16,), **options).samples == 12
    with (
        failing(monkeypatch, "open", errno.EIO, lambda call: call > 20),
        pytest.raises(StorageError),
    ):
        build_cache(jpeg_folder, tmp_path / "other", (16,), **options)
    assert build_cache(jpeg_folder, tmp_path / "other", (16,), **options).samples == 12


def test_copies_are_read_in_spite_of_passing_errors(jpeg_folder, tmp_path, monkeypatch):
    build_cache(jpeg_folder, tmp_path / "cache", (16,), workers=0)
    with (
        loader(ImageFolder(tmp_path / "cache"), on_error="skip") as batches,
        failing(monkeypatch, "open", errno.ESTALE, lambda call: call in (1, 3)),
    ):
        assert [len(labels) for _, labels in batches] == [4, 4, 4]
        assert batches.skipped == []


def test_skipped_samples_are_tried_again_at_each_build(tmp_path, jpeg_folder):
    away = jpeg_folder / "cats" / "2.jpg"
    unreadable = [away.name]

    def sample(number):
        if unreadable and number == 2:
            raise ValueError("not now")
        return originals[number]

    originals = ImageFolder(jpeg_folder, transform=lambda image: image)
    source, options = Made(12, sample), {"workers": 0, "on_error": "skip"}
    first = build_cache(source, tmp_path / "cache", (16,), **options)
    assert [number for number, _, _ in first.skipped] == [2]
    assert build_cache(source, tmp_path / "cache", (16,), **options) == first
    unreadable.clear()
    again = build_cache(source, tmp_path / "cache", (16,), **options)
    assert (again.samples, again.skipped) == (12, ())
