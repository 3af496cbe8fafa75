"""Rooms stand in the order of the data, and imports go down only: docs/architecture.md has the picture."""

import ast
from pathlib import Path

import lamina

SOURCE = Path(lamina.__file__).parent
# From the ground up. A module may import from its own room and from those before it; names without a room are modules
# that lie in lamina itself.
ROOMS = (
    ("errors", "checks", "device", "shapes", "triton_check_kernel", "progress", "expression", "metrics", "colours"),
    ("geometry",),
    ("linear",),
    ("search",),
    ("fits",),
    ("io",),
    ("surfaces", "gallery"),
    ("reconstruction",),
    ("grid",),
    ("spaces",),
    ("domain",),
    ("view",),
    ("solution",),
    ("pde",),
    ("nn",),
    ("learn",),
    ("paper",),
    ("baselines",),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(ROOMS) for name in names}


def imports(path: Path) -> list[str]:
    """The modules of lamina that a file names in imports anywhere: at its top, in functions, for annotations."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return [name for name in found if name.startswith("lamina.")]


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_module_has_its_room():
    files = {p.stem for p in SOURCE.glob("*.py")}
    names = files | {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert names - {"__init__"} == set(RANK)


def test_imports_go_down():
    upward = []
    for path in sorted(SOURCE.rglob("*.py")):
        here = path.relative_to(SOURCE).with_suffix("").parts[0]
        if here == "__init__":
            continue
        above = [name for name in imports(path) if RANK[room(name)] > RANK[here]]
        upward += [f"{path.relative_to(SOURCE)} imports {name}" for name in above]
    assert upward == []


def test_the_paper_is_imported_by_the_program_and_by_name_alone():
    importing = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        if any(room(name) in ("paper", "baselines") for name in imports(path))
    }
    assert importing <= {"paper", "baselines.py", "cli", "__init__.py"}
