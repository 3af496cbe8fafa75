"""Rules of the house that a reader relies on: constants have names of their own, tests use public names."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import lamina

SOURCE, TESTS = Path(lamina.__file__).parent, Path(__file__).parent


def constants(path):
    """Names in capitals that a module gives numbers, or tuples or dictionaries of numbers."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)):
                if name.lstrip("_").isupper():
                    yield name


def is_number(value):
    if isinstance(value, ast.Tuple):
        return all(map(is_number, value.elts))
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(map(is_number, value.values))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def test_no_two_constants_share_a_name():
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.stem.endswith("_kernel"):  # which repeat those of their twins in torch
            for name in constants(path):
                places[name].append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", sorted(TESTS.glob("*.py")), ids=lambda path: path.stem)
def test_tests_import_no_private_names(path):
    private = [
        f"{node.module}.{name.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lamina")
        for name in node.names
        if name.name.startswith("_")
    ]
    assert private == []
