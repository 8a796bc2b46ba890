"""Checkpoints are whole, and run nothing when read."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from caches import flip
from feedline.errors import SaveError, StateError
from feedline.train.prepare import load_weights
from feedline.train.run_folder import (
    WEIGHTS,
    CheckpointWriter,
    load_checkpoint,
    save_checkpoint,
)


def test_full_disk_is_named_with_sizes_and_leaves_the_earlier_checkpoint(tmp_path):
    """torch's writer, if files may have 64 KiB."""
    resource, path = pytest.importorskip("resource"), tmp_path / "last.pt"
    save_checkpoint(path, {"step": 1})
    before, (limit, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(SaveError, match=r"last.pt cannot be .*needed: about 400.0 kB.*free: "):
            save_checkpoint(path, {"weights": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert [child.name for child in tmp_path.iterdir()] == ["last.pt"]
    assert path.read_bytes() == before


def test_previous_checkpoints_are_kept(tmp_path):
    writer = CheckpointWriter(out=tmp_path, keep=2, note=pytest.fail)
    for epochs in range(9997, 10001):
        writer.save({"step": epochs}, epochs=epochs)
    assert load_checkpoint(tmp_path)["step"] == 10000
    assert load_checkpoint(tmp_path / "previous.pt")["step"] == 9999
    names = sorted(child.name for child in tmp_path.iterdir())
    assert names == ["epoch-10000.pt", "epoch-9999.pt", "last.pt", "previous.pt"]
    assert load_checkpoint(tmp_path / "epoch-9999.pt")["step"] == 9999


class _Trap:
    def __reduce__(self):
        return (Path.touch, (Path("sprung"),))


NOISE = [np.random.default_rng(seed).bytes(2000) for seed in range(4)]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", pickle.dumps(_Trap()), *NOISE])
def test_damaged_or_foreign_file_is_rejected_and_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(StateError, match="damaged, or not a checkpoint") as error:
        load_checkpoint(tmp_path / "last.pt")
    assert "weights_only" not in str(error.value)
    assert not (tmp_path / "sprung").exists()


def test_other_files_are_rejected_with_their_kind(tmp_path):
    last, best = tmp_path / "last.pt", tmp_path / "best.pt"
    with pytest.raises(StateError, match="no such file"):
        load_checkpoint(tmp_path)
    save_checkpoint(last, {"weights": torch.zeros(1000)})
    last.write_bytes(last.read_bytes()[:-500])
    with pytest.raises(StateError, match="damaged"):
        load_checkpoint(tmp_path)
    torch.save({"state_dict": {}}, last)
    with pytest.raises(StateError, match="got another file"):
        load_checkpoint(tmp_path)
    save_checkpoint(best, {"weights": torch.arange(3)}, kind=WEIGHTS)
    with pytest.raises(StateError, match=r"(?s)got feedline model weights.*name last\.pt"):
        load_checkpoint(best)


def test_a_changed_bit_in_any_entry_is_damage(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"weights": torch.arange(100.0), "step": 3, "random": torch.arange(8)})
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entries = [archive.read(name) for name in archive.namelist()]
    assert len(entries) > 4
    for entry in entries:
        flip(path, whole.index(entry) + len(entry) // 2)
        with pytest.raises(StateError, match="damaged"):
            load_checkpoint(path)
        path.write_bytes(whole)
    assert load_checkpoint(path)["step"] == 3


@pytest.mark.skipif(
    not hasattr(torch.serialization, "set_crc32_options"), reason="torch always writes checksums"
)
def test_checkpoints_have_checksums_if_a_program_turns_them_off_and_are_read_without(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        save_checkpoint(tmp_path / "last.pt", {"weights": torch.arange(100.0)})
        assert not torch.serialization.get_crc32_options()
        torch.save(load_checkpoint(tmp_path), tmp_path / "without.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    for name, has_checksums in (("last.pt", True), ("without.pt", False)):
        with zipfile.ZipFile(tmp_path / name) as archive:
            assert any(entry.CRC for entry in archive.infolist()) == has_checksums
        assert load_checkpoint(tmp_path / name)["weights"].tolist() == list(range(100))


@pytest.mark.parametrize(
    "error",
    [MemoryError("no memory"), torch.cuda.OutOfMemoryError("CUDA out of memory.")],
    ids=type,
)
def test_missing_memory_is_no_damage(tmp_path, monkeypatch, error):
    def full(*_, **__):
        raise error

    save_checkpoint(tmp_path / "last.pt", {"step": 1})
    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(type(error)):
        load_checkpoint(tmp_path)
    model = torch.nn.Linear(2, 3)
    content = {"state": {"ema": None, "model": model.state_dict()}}
    monkeypatch.setattr(model, "load_state_dict", full)
    with pytest.raises(type(error)):
        load_weights(content, tmp_path, model, torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize("part", ["model", "ema", "optimizer"])
def test_state_of_another_model_is_named(tmp_path, part):
    def parts(rows):
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(rows)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return model, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, optimizer

    model, state, optimizer = parts(1)
    state = {**state, "ema": model.state_dict()}
    load_weights({"state": state}, tmp_path, model, optimizer)
    other = parts(2)[1]
    state[part] = other["optimizer" if part == "optimizer" else "model"]
    with pytest.raises(StateError, match=f"{tmp_path}: written with another version"):
        load_weights({"state": state}, tmp_path, model, optimizer)
