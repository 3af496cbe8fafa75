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

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "_extra"]
html_extra_path = ["_extra"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "lamina"
html_copy_source = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

# What the program can say is read from its source, so that the list is complete.
# The page of the paper's tables is made of their results.
(HERE / "_extra").mkdir(exist_ok=True)
(HERE / "_extra" / "tables.html").write_text(page(HERE.parent / "experiments", TABLES.values()), encoding="utf-8")
(HERE / "messages.md").write_text(messages.page(HERE.parent / "src" / "lamina"), encoding="utf-8")


def as_restructured_text(app, what, name, thing, options, lines: list[str]) -> None:
    """Docstrings are plain English with formulas set in; Sphinx wants them in its own language.

    `names` become code, indented lines and doctests literal blocks, stars and bars letters.
    """
    found: list[str] = []
    literal = False
    for line in lines:
        inside = line.startswith("    ") and bool(line.strip())
        if inside and not literal:
            found += ["", "::", ""]
        elif not inside and literal and line.strip():
            found.append("")
        literal = inside or (literal and not line.strip())
        found.append(line if inside or line.startswith(">>>") else _plain(line))
    lines[:] = found


def _plain(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"`{part}`" if part.startswith("`") else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", part) for part in parts
    )


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text)
