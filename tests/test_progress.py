"""Progress says how long it will take, after a while, on a terminal; otherwise nothing is said."""

import contextlib
import io
import re
import sys
import time

import pytest

from lamina import progress as module


class Terminal(io.StringIO):
    def isatty(self):
        return True


def said_by(stream, show=None, steps=8, seconds=0.06):
    """What a piece of work of that many steps writes to the stream in place of stderr."""
    with contextlib.redirect_stderr(stream), module.progress("solving", show) as update:
        for i in range(steps):
            update((i + 1) / 10, f"residual 1e-{i}")
            time.sleep(seconds)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BEFORE_BAR", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_it_tells_what_how_far_and_how_long():
    said = said_by(Terminal())
    assert "solving" in said
    assert re.search(r"[1-8]0%", said)
    assert re.search(r"\d:\d\d:\d\d left", said)
    assert "residual 1e-" in said


def test_it_is_silent_when_asked_to_be():
    assert said_by(Terminal(), show=False) == ""


def test_it_is_silent_where_there_is_no_terminal():
    assert said_by(io.StringIO()) == ""


def test_it_is_silent_when_all_is_done_in_a_moment():
    assert said_by(Terminal(), steps=2, seconds=0) == ""


def test_it_is_silent_without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert said_by(Terminal()) == ""


def test_an_error_comes_through():
    def failing():
        with contextlib.redirect_stderr(Terminal()), module.progress("solving", None) as update:
            update(0.1, "")
            time.sleep(0.1)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        failing()
