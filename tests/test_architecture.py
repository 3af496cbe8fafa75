"""docs/architecture.md names the rooms that there are, and the functions that a solve goes through, in their order."""

import ast
import re
import sys
from pathlib import Path

import pytest

import lamina
import test_layers

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "architecture.md").read_text()
SOURCE = Path(lamina.__file__).parent
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def first_column(text: str) -> list[list[str]]:
    return [re.findall(r"`(\w+)`", row.split("|")[1]) for row in text.splitlines() if row.startswith("| `")]


def defined(path: Path) -> set[str]:
    """Functions, classes and methods of a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_every_function_of_the_page_exists(file, name):
    assert name in defined(SOURCE / file)


def test_rooms_are_those_of_the_layering_test():
    assert first_column(section("The rooms")) == [list(names) for names in test_layers.ROOMS]


def test_every_room_is_in_the_picture():
    boxes = re.findall(r'font-weight="bold"[^>]*>([^<]*)<', (DOCS / "images" / "rooms.svg").read_text())
    shown = {name for box in boxes for name in box.split(", ")}
    helpers, *rooms = test_layers.ROOMS
    assert shown - {*helpers, "…"} == {name for names in rooms for name in names} - {"__main__"}


def test_a_solve_goes_through_the_functions_of_the_page_in_their_order(tmp_path, monkeypatch):
    """The code block of the page, on a box of eight vertices; each function is noted when it is called first."""
    text = section("The path of a solve")
    table = text[text.index("| call |") : text.index("Other surfaces")]
    steps = NAMED.findall(table)
    wanted = {}
    for file, name in steps:
        at = str(SOURCE / file)
        wanted |= {(at, name): (file, name), (at, f"{name}.__init__"): (file, name)}
    monkeypatch.chdir(tmp_path)
    corners = [(x, y, z) for x in (0, 3) for y in (0, 2) for z in (0, 1)]
    faces = ["1 2 4 3", "5 7 8 6", "1 5 6 2", "3 4 8 7", "1 3 7 5", "2 6 8 4"]
    lines = [*(f"v {x} {y} {z}" for x, y, z in corners), *(f"f {face}" for face in faces)]
    Path("bunny.obj").write_text("\n".join(lines))
    block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    called: dict[tuple[str, str], None] = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and (step := wanted.get((code.co_filename, code.co_qualname))):
            called[step] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        exec(block, {})
    finally:
        sys.setprofile(before)
    assert list(called) == steps
