"""`feedline doctor`: output, exit status, and terminals."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
from command_line import Ended, run_on_terminal

import preloaded
from feedline.profile.doctor import CHECK_IDS
from processes import newcomers, own_family

COMMAND = [sys.executable, "-m", "feedline", "doctor"]
WORDS = "ok|note|warn|fail|not measured"
LINE = re.compile(rf"(\S) ({WORDS}) +([a-z-]+) +(\S.*)")


def environment(**changes):
    """Environment of this process with changes; None removes a variable."""
    taken = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "OMP_NUM_THREADS")
    kept = {name: text for name, text in os.environ.items() if name not in taken}
    return {**kept, **{name: text for name, text in changes.items() if text is not None}}


def run(*arguments, before="", **changes):
    """Run the command, after a statement that changes its process."""
    script = f"{before}\nfrom feedline.cli.app import main\nmain()"
    done = preloaded.run(
        [sys.executable, "-c", script, "doctor", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env=environment(**changes),
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def statuses(out):
    """The words of all checks, by their ids."""
    return {found[3]: found[2] for found in map(LINE.fullmatch, out.splitlines()) if found}


def test_each_check_is_one_line_and_nothing_else_is_written(tiny_set, tmp_path):
    target, home = tmp_path / "doctor.json", tmp_path / "home"
    home.mkdir(mode=0o500)
    before = sorted(tiny_set.rglob("*"))
    own = {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = run(tiny_set, "--json", target, **own)
    assert sorted(tiny_set.rglob("*")) == before
    assert not list(home.iterdir())
    (note,) = ended.err.splitlines()
    assert str(tiny_set / "train") in note
    words = statuses(ended.out)
    assert list(words) == list(CHECK_IDS)
    signs = {found[1] for found in map(LINE.fullmatch, ended.out.splitlines()) if found}
    assert signs <= set("\u2713\u00b7!\u2717?")
    written = json.loads(target.read_text())
    said = {"unknown": "not measured"}
    assert words == {
        check["id"]: said.get(check["status"], check["status"]) for check in written["checks"]
    }
    assert written["folder"] == str(tiny_set / "train")
    assert {"num_workers", "prefetch"} <= {each["name"] for each in written["settings"]}
    faults = {check["id"] for check in written["checks"] if check["status"] in ("warn", "fail")}
    assert ended.status == bool(faults)
    fixes = [line for line in ended.out.splitlines() if line.lstrip().startswith("fix: ")]
    assert len(fixes) == sum(bool(check["fix"]) for check in written["checks"])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_affinity_to_one_core_is_reported():
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    ended = run(before=one, OMP_NUM_THREADS="64", SLURM_CPUS_PER_TASK="2")
    words = statuses(ended.out)
    assert (words["usable-cores"], words["omp-threads"]) == ("warn", "warn")
    assert ended.status == 1
    assert "export OMP_NUM_THREADS=1" in ended.out


def on_a_terminal(**changes):
    """Output of the command on a pseudo-terminal."""
    env = environment(**{"TERM": "xterm-256color", **changes})
    return run_on_terminal(COMMAND, env)[2].decode().replace("\r\n", "\n")


def test_colour_is_only_used_on_terminals_that_show_it():
    coloured, plain = on_a_terminal(), run().out
    assert "\x1b[32m\u2713 ok" in coloured
    assert {*statuses(re.sub(r"\x1b\[[0-9;]*m", "", coloured))} == {*statuses(plain)}
    assert "\x1b" not in plain
    assert "\x1b[3" not in on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(TERM="dumb")


def test_ascii_terminal_gets_ascii_symbols_for_folders_of_any_name(tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff\xfe \xe7\x8c\xab")
    odd.mkdir()
    (odd / "\u732b.jpg").write_bytes(b"x")
    ended = run(odd, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert ended.err == ""
    assert ended.out.isascii()
    assert re.search(r"^\+ ok +data-folder", ended.out, re.MULTILINE)


def test_first_reads_of_a_folder_that_hangs_are_abandoned(feedline, tiny_set, monkeypatch):
    ends = threading.Event()

    def hang(folder):
        assert threading.current_thread() is not threading.main_thread(), "it has no deadline"
        ends.wait()

    monkeypatch.setattr("feedline.profile.doctor.DEADLINE_S", 0.05)
    monkeypatch.setattr("feedline.profile.doctor.require_folder", hang)
    monkeypatch.setattr("feedline.cache.source.list_splits", hang)
    try:
        assert list(statuses(feedline("doctor", tiny_set).out)) == list(CHECK_IDS)
    finally:
        ends.set()


def test_closed_output_pipe_is_not_an_error():
    with preloaded.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as command:
        command.stdout.readline()
        command.stdout.close()
        said = command.stderr.read()
    assert said == b""
    assert command.returncode in (0, 1)


def test_doctor_lists_checks_that_were_not_measured(feedline):
    import torch

    ended = feedline("doctor", "--measure")
    words = statuses(ended.out.replace("+ ok", "\u2713 ok"))
    if not torch.cuda.is_available():
        assert words["copy-rate"] == "not measured"
        assert "0.0" not in next(line for line in ended.out.splitlines() if "copy-rate" in line)
    else:
        assert words["copy-rate"] in ("ok", "warn")


def test_verify_lists_every_broken_file(feedline, tiny_set, tmp_path):
    root, target, before = tmp_path / "photos", tmp_path / "verify.json", own_family()
    shutil.copytree(tiny_set, root)
    command = ("doctor", root, "--verify", "--workers", 2, "--json", target)
    ended = feedline(*command)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    whole = (root / "train" / "dark" / "0.jpg").read_bytes()
    contents = {
        "train/dark/1.jpg": whole[: len(whole) // 2],
        "train/light/2.jpg": b"",
        "val/dark/0.jpg": b"<!DOCTYPE html><html></html>",
        "val/light/1.jpg": b"\x89PNG\r\n\x1a\n",
    }
    for name, content in contents.items():
        (root / name).write_bytes(content)
    (root / "train" / "notes.txt").write_text("not an image")
    broken = [root / name for name in contents]
    ended = feedline(*command)
    assert ended.status == 1
    assert not newcomers(before)
    result, *lines = ended.out.splitlines()
    assert "4 of 20" in result
    assert sorted(line.partition(": ")[0] for line in lines) == sorted(map(str, broken))
    found = json.loads(target.read_text())
    assert found["images"] == 20
    assert sorted(each["file"] for each in found["broken"]) == sorted(map(str, broken))
    assert all(each["reason"] for each in found["broken"])
