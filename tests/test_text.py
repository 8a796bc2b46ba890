"""Figures, tables and paragraphs as text."""

import sys

import pytest

from feedline.text import as_ms, as_seconds, shell_command


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.4, "99 s"),
        (100, "1.7 min"),
        (5900, "98 min"),
        (6000, "1.7 h"),
        (360_000, "100 h"),
    ],
)
def test_a_time_has_the_unit_that_fits(seconds, text):
    assert as_seconds(seconds) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.5, "0.50 ms"), (999.4, "999 ms"), (999.6, "1.00 s"), (5402, "5.40 s"), (9960, "10 s")],
)
def test_a_long_time_in_ms_is_in_seconds(ms, text):
    assert as_ms(ms) == text


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", r"feedline cache verify 'C:\my photos' --decode"),
        ("win32", r'feedline cache verify "C:\my photos" --decode'),
    ],
)
def test_commands_are_quoted_for_the_platform(platform, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    command = shell_command("feedline", "cache", "verify", r"C:\my photos", "--decode")
    assert command == expected
