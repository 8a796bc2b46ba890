"""A signal ends a command and its processes, and its temporary files are removed."""

import signal
import sys

import pytest
from command_line import interrupt

from slow import slow

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

SMALL = ("--image-size", 32, "--batch-size", 8)
VERIFY = """
import sys, time
from pathlib import Path
from feedline.images.codec_registry import Decoder
from feedline.cli.app import main
def read(*_):
    Path(sys.argv[1], "reading").touch()
    time.sleep(600)
Decoder.read = read
main(sys.argv[2:])
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, *slow(signal.SIGTERM)])
def test_a_plan_removes_its_caches(tiny_set, temporary, signum):
    plan = ("cache", "plan", tiny_set / "train", "--schedule", "16x1,32x1", "--workers", 1)
    ended = interrupt(
        [*plan, "--seconds", 600],
        # The last cache is whole: rates are measured now, for minutes.
        lambda _: any(temporary.glob("*/*-raw/feedline-cache.json")),
        signum,
        TMPDIR=temporary,
    )
    assert ended.out == ""
    assert ended.err == ("interrupted\n" if signum == signal.SIGINT else "")
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_overlap_is_measured_with_generated_images_that_are_removed(temporary):
    def is_measuring(family):
        return len(family) >= 2 and any(temporary.glob("feedline-*/demo/train/*/*.jpg"))

    explain = ("explain-overlap", *SMALL, "--seconds", 3, "--workers", 2, "--step-ms", 10)
    ended = interrupt(explain, is_measuring, signal.SIGINT, TMPDIR=temporary)
    assert (ended.out, ended.err) == ("", "interrupted\n")
    assert not list(temporary.glob("feedline*"))


def test_a_verification_ends(tiny_set, tmp_path):
    verify = (tmp_path, "doctor", tiny_set, "--verify", "--workers", 1)
    started = tmp_path / "reading"
    ended = interrupt(verify, lambda _: started.exists(), signal.SIGINT, script=VERIFY)
    assert (ended.out, ended.err) == ("", "interrupted\n")
