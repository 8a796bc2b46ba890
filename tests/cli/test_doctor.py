"""`feedline doctor`: output, exit status, and terminals."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Command, Ended, run_on_terminal

import preloaded
from feedline.profile.doctor import CHECK_IDS
from processes import newcomers, own_family

COMMAND = [sys.executable, "-m", "feedline", "doctor"]
WORDS = "ok|note|warn|fail|not measured"
LINE = re.compile(rf"(\S) ({WORDS}) +([a-z-]+) +(\S.*)")


def environment(**changes: str | None) -> dict[str, str]:
    """Environment of this process with changes; None removes a variable."""
    taken = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "OMP_NUM_THREADS")
    kept = {name: text for name, text in os.environ.items() if name not in taken}
    return {**kept, **{name: text for name, text in changes.items() if text is not None}}


def run(*arguments: object, before: str = "", **changes: str) -> Ended:
    """Run the command, after a statement that changes its process."""
    script = f"{before}\nfrom feedline.cli.app import main\nmain()"
    done = preloaded.run(
        [sys.executable, "-c", script, "doctor", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env=environment(**changes),
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def statuses(out: str) -> dict[str, str]:
    """The words of all checks, by their ids."""
    return {found[3]: found[2] for found in map(LINE.fullmatch, out.splitlines()) if found}


def test_each_check_is_one_line_with_symbol_and_word(tiny_set: Path, tmp_path: Path) -> None:
    target = tmp_path / "doctor.json"
    ended = run(tiny_set, "--json", target)
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


def test_no_fault_is_status_0_and_a_fault_is_1(tiny_set: Path, tmp_path: Path) -> None:
    """Two runs that only differ in a limit on the process."""
    counts = []
    for limit in (2048, 512):
        target = tmp_path / "doctor.json"
        files = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, 2048))"
        ended = run(tiny_set, "--json", target, before=files)
        checks = {check["id"]: check for check in json.loads(target.read_text())["checks"]}
        faults = {name for name, check in checks.items() if check["status"] in ("warn", "fail")}
        assert ended.status == bool(faults), ended.err
        counts.append(faults - {"other-programs"})
    assert counts[1] - counts[0] == {"open-files"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_affinity_to_one_core_is_reported() -> None:
    one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    ended = run(before=one, OMP_NUM_THREADS="64", SLURM_CPUS_PER_TASK="2")
    words = statuses(ended.out)
    assert (words["usable-cores"], words["omp-threads"]) == ("warn", "warn")
    assert ended.status == 1
    assert "export OMP_NUM_THREADS=1" in ended.out


def test_json_may_go_to_the_screen() -> None:
    ended = run("--json", "/dev/stdout")
    assert ended.err == ""
    written = json.loads(ended.out[ended.out.index("\n{\n") :])
    assert [check["id"] for check in written["checks"]] == list(statuses(ended.out))


def on_a_terminal(**changes: str | None) -> str:
    """Output of the command on a pseudo-terminal."""
    env = environment(**{"TERM": "xterm-256color", **changes})
    return run_on_terminal(COMMAND, env)[2].decode().replace("\r\n", "\n")


def test_colour_is_only_used_on_terminals_that_show_it() -> None:
    coloured, plain = on_a_terminal(), run().out
    assert "\x1b[32m\u2713 ok" in coloured
    assert {*statuses(re.sub(r"\x1b\[[0-9;]*m", "", coloured))} == {*statuses(plain)}
    assert "\x1b" not in plain
    assert "\x1b[3" not in on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(TERM="dumb")


def test_ascii_terminal_gets_ascii_symbols(tmp_path: Path) -> None:
    odd = tmp_path / "\u00fcber \u732b"
    odd.mkdir()
    (odd / "\u732b.jpg").write_bytes(b"x")
    ended = run(odd, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert ended.err == ""
    assert ended.out.isascii()
    assert re.search(r"^\+ ok +data-folder", ended.out, re.MULTILINE)


def test_folder_with_non_utf8_name_is_examined(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(odd)
    done = preloaded.run([*COMMAND, odd], capture_output=True, timeout=120, env=environment())
    assert done.stderr == b""
    assert re.search(rb"warn +data-folder +.*empty", done.stdout)


def test_closed_output_pipe_is_not_an_error() -> None:
    with preloaded.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        said = command.stderr.read()
    assert said == b""
    assert command.returncode in (0, 1)


def test_nothing_is_written_even_to_home(tiny_set: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    before = sorted(tiny_set.rglob("*"))
    ended = run(tiny_set, HOME=str(home), TMPDIR=str(home), PYTHONDONTWRITEBYTECODE="1")
    assert ended.err.count("\n") == ended.err.count("note: using ") == 1
    assert list(statuses(ended.out)) == list(CHECK_IDS)
    assert sorted(tiny_set.rglob("*")) == before
    assert not list(home.iterdir())


def test_doctor_lists_checks_that_were_not_measured(feedline: Command) -> None:
    import torch

    ended = feedline("doctor", "--measure")
    words = statuses(ended.out.replace("+ ok", "\u2713 ok"))
    if not torch.cuda.is_available():
        assert words["copy-rate"] == "not measured"
        assert "0.0" not in next(line for line in ended.out.splitlines() if "copy-rate" in line)
    else:
        assert words["copy-rate"] in ("ok", "warn")


@pytest.fixture
def broken_set(tiny_set: Path, tmp_path: Path) -> tuple[Path, list[Path]]:
    """20 images in train/ and val/, of which some are broken, and the paths of these."""
    root = tmp_path / "photos"
    shutil.copytree(tiny_set, root)
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
    return root, [root / name for name in contents]


def test_verify_lists_every_broken_file(
    feedline: Command, broken_set: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    root, broken = broken_set
    target = tmp_path / "verify.json"
    before = own_family()
    ended = feedline("doctor", root, "--verify", "--workers", 2, "--json", target)
    assert ended.status == 1
    assert not newcomers(before)
    result, *lines = ended.out.splitlines()
    assert "4 of 20" in result
    assert sorted(line.partition(": ")[0] for line in lines) == sorted(map(str, broken))
    found = json.loads(target.read_text())
    assert found["images"] == 20
    assert sorted(each["file"] for each in found["broken"]) == sorted(map(str, broken))
    assert all(each["reason"] for each in found["broken"])


def test_verify_of_a_sound_set_is_status_0(feedline: Command, tiny_set: Path) -> None:
    ended = feedline("doctor", tiny_set, "--verify", "--workers", 1)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
