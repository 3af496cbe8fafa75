"""`lamina view`: look at a solution or a surface in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lamina.errors import InputError


def view(
    what: Annotated[
        Path,
        typer.Argument(
            help="The folder of lamina solve --out, a solution (PLY, NPZ), a page (HTML), or any surface.",
            metavar="DIR|FILE",
        ),
    ],
    reference: Annotated[
        Path | None, typer.Option(help="A solution on the same points; the page shows both and the error.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the page, .html.")] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Look at a solution in the browser. The page is one HTML file that works offline and can be sent to others."""
    from lamina.view.browse import open_browser

    path = _ready_page(what) if reference is None and out is None else None
    if path is None:
        path = _write_page(what, reference, out)
        print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if open_ and not open_browser(path):
        print(f"There is no browser here; open {path} in one.")
    elif not open_:
        print(f"Open {path} in a browser.")


def _ready_page(what: Path) -> Path | None:
    """The page that was written with the solution; None if there is none or the solution is newer."""
    if what.suffix.lower() == ".html":
        if not what.is_file():
            raise InputError(f"there is no file {what}.")
        return what
    page, solution = what / "solution.html", what / "solution.ply"
    if not page.is_file():
        return None
    older = solution.is_file() and page.stat().st_mtime < solution.stat().st_mtime - 1
    return None if older else page


def _write_page(what: Path, reference: Path | None, out: Path | None) -> Path:
    from lamina.view.page import page
    from lamina.view.scene import read_scene

    if out is not None and out.suffix.lower() != ".html":
        raise InputError(f"--out is {str(out)!r}; expected a file that ends in .html.")
    scene = read_scene(what)
    if reference is not None:
        other = read_scene(reference)
        if len(other.points) != len(scene.points):
            raise InputError(
                f"--reference has {len(other.points)} points and {what} has {len(scene.points)}; they must be the same."
            )
        states = other.values if len(other.times) == len(scene.times) else other.values[-1]
        scene = scene.beside(states, reference.stem if reference.is_file() else reference.resolve().name)
    if out is None:
        out = what / "solution.html" if what.is_dir() else Path(what.name).with_suffix(".html")
        if reference is not None:
            out = out.with_stem(f"{out.stem}-compared")
    return page(scene).save(out)
