"""Sphinx: `make docs` builds the documentation, warnings being errors."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import lamina
from lamina.paper.tables.registry import TABLES
from lamina.paper.tables.report import page

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # messages.py lies beside this file, which Sphinx does not look at
messages = importlib.import_module("messages")

project = "lamina"
author = "The lamina developers"
project_copyright = "the lamina developers"
version = release = lamina.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "_extra"]
html_extra_path = ["_extra"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "lamina"
html_copy_source = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True

# What the program can say is read from its source, so that the list is complete.
# The page of the paper's tables is made of their results.
(HERE / "_extra").mkdir(exist_ok=True)
(HERE / "_extra" / "tables.html").write_text(page(HERE.parent / "experiments", TABLES.values()), encoding="utf-8")
(HERE / "messages.md").write_text(messages.page(HERE.parent / "src" / "lamina"), encoding="utf-8")


def as_restructured_text(app, what, name, thing, options, lines: list[str]) -> None:
    """Docstrings are plain English with formulas set in; Sphinx wants them in its own language.

    `names` become code, indented lines literal blocks, stars and bars letters. Doctests stay as they are, and so do the
    sections of numpydoc: napoleon reads these next, and there indented lines are text.
    """
    found: list[str] = []
    literal = doctest = section = False
    for i, line in enumerate(lines):
        underlined = bool(re.fullmatch(r"-{3,}", lines[i + 1])) if i + 1 < len(lines) else False
        doctest = line.startswith(">>>") or (doctest and bool(line.strip()))
        section = section or underlined
        if doctest or underlined or re.fullmatch(r"-{3,}", line):
            found.append(line)
            continue
        inside = line.startswith("    ") and bool(line.strip()) and not section
        if inside and not literal:
            found += ["", "::", ""]
        elif not inside and literal and line.strip():
            found.append("")
        literal = inside or (literal and not line.strip())
        entry = section and re.match(r"(\*\*)?\w+(, \w+)*( : |$)", line)
        found.append(line if inside or entry else _plain(line))
    lines[:] = found


def _plain(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{part}`" if part.startswith("`") else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", part) for part in parts
    )


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon, which has 500
