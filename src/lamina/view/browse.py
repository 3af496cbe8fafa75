"""Show a page in a notebook or in the browser."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import webbrowser
from pathlib import Path

from lamina.view.page import Page


def show(page: Page, name: str) -> None:
    """Show a page in the running notebook. Without a notebook, write it to a temporary file and open the browser."""
    if in_notebook():
        display = importlib.import_module("IPython.display").display  # installed, because a notebook is running

        display(page)
        return
    folder = Path(tempfile.mkdtemp(prefix="lamina-"))
    stem = "".join(c if c.isalnum() else "-" for c in name) or "lamina"
    path = page.save(folder / f"{stem}.html")
    if not open_browser(path):
        print(f"lamina: there is no browser here; the page is {path}", file=sys.stderr)


def open_browser(path: Path) -> bool:
    """Open a file in the default browser. False if there is no graphical browser."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False  # webbrowser would start one in the terminal
    try:
        return webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
