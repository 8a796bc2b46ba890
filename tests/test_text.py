"""Figures, tables and paragraphs as text."""

import sys

import pytest

from feedline.text import as_ms, as_seconds, shell_command

SECONDS = {0.04: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 99.4: "99 s", 100: "1.7 min"}
SECONDS |= {5900: "98 min", 6000: "1.7 h", 360_000: "100 h"}
MS = {0.5: "0.50 ms", 999.4: "999 ms", 999.6: "1.00 s", 5402: "5.40 s", 9960: "10 s"}


def test_a_time_has_the_unit_that_fits():
    assert {seconds: as_seconds(seconds) for seconds in SECONDS} == SECONDS
    assert {ms: as_ms(ms) for ms in MS} == MS


@pytest.mark.parametrize(("platform", "quote"), [("linux", "'"), ("win32", '"')])
def test_commands_are_quoted_for_the_platform(platform, quote, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    command = shell_command("feedline", "cache", "verify", r"C:\my photos", "--decode")
    assert command == rf"feedline cache verify {quote}C:\my photos{quote} --decode"
