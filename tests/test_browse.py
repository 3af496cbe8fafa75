"""show() puts the page where someone sees it: below the cell of a notebook, in the browser, or says where it is."""

import sys
import types
from pathlib import Path

import pytest

from lamina.surfaces.icosphere import icosphere
from lamina.view import browse
from lamina.view.page import Page, page
from lamina.view.scene import Scene

POINTS = icosphere(1)[0].numpy()


@pytest.fixture
def made() -> Page:
    return page(Scene("ball", POINTS, POINTS[:, :1].T))


def test_a_notebook_displays_the_page(made, monkeypatch):
    shown = []
    kernel = types.SimpleNamespace(kernel=object())
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: kernel
    vars(display)["display"] = shown.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    browse.show(made, "ball")
    assert shown == [made]


def test_elsewhere_the_browser_opens_a_file(made, monkeypatch):
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    browse.show(made, "a/b")
    path = Path(opened[0].removeprefix("file://"))
    assert path.name == "a-b.html"
    assert path.read_text() == made.text


def test_without_a_browser_it_says_where_the_page_is(made, monkeypatch, capsys):
    monkeypatch.setattr(browse, "open_browser", lambda path: False)
    browse.show(made, "ball")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert Path(said.split("the page is ")[1].strip()).read_text() == made.text
