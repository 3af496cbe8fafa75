"""Collects every sentence that lamina can say no or warn with, from its source: errors, failed solves, notes.

python docs/messages.py             prints them
messages(folder), page(folder)      for the documentation, which lists them all, and for the test of that list
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ERRORS = {"InputError": "refused", "FormatError": "refused", "SolveError": "failed"}
LISTS = ("notes", "warnings")


@dataclass(frozen=True)
class Message:
    """kind: refused (exit status 2), failed (1) or warning. text: with an ellipsis where something is filled in."""

    kind: str
    text: str
    module: str


def messages(package: Path) -> list[Message]:
    """All of them, by module."""
    found: dict[Message, None] = {}
    for path in sorted(package.rglob("*.py")):
        module = "lamina." + ".".join(path.relative_to(package).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for kind, text in _said(tree):
            found[Message(kind, text, module.removesuffix(".__init__"))] = None
    return list(found)


def _said(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef):
            # A function that is named for its warning returns it, alone or in a list.
            if "warning" in scope.name or scope.name == "check_convergence":
                for node in ast.walk(scope):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield from (("warning", text) for text in _texts(node.value, scope))
            for node in ast.walk(scope):
                yield from _in_statement(node, scope)


def _in_statement(node: ast.AST, scope: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        kind = ERRORS.get(getattr(node.exc.func, "id", ""))
        if kind:
            yield from ((kind, text) for text in _texts(node.exc.args[0], scope))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
        owner = node.func.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name in LISTS and node.args:
            yield from (("warning", text) for text in _texts(node.args[0], scope))
    if isinstance(node, ast.Assign | ast.AugAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {t.attr if isinstance(t, ast.Attribute) else getattr(t, "id", "") for t in targets}
        if names & set(LISTS):
            yield from (("warning", text) for text in _texts(node.value, scope))


def _texts(node: ast.AST, scope: ast.AST) -> list[str]:
    """The sentences that an expression may be, at least three words long."""
    if isinstance(node, ast.List | ast.Tuple):
        return [text for item in node.elts for text in _texts(item, scope)]
    if isinstance(node, ast.IfExp):
        return _texts(node.body, scope) + _texts(node.orelse, scope)
    if isinstance(node, ast.Name):  # a message put together before
        return [
            text
            for other in ast.walk(scope)
            if isinstance(other, ast.Assign) and any(getattr(t, "id", "") == node.id for t in other.targets)
            for text in _texts(other.value, scope)
            if not isinstance(other.value, ast.Name)
        ]
    text = _template(node)
    return [text] if text is not None and len(text.split()) > 2 else []


def _template(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (_template(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return "".join(part or "" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        return None if left is None and right is None else (left or "…") + (right or "…")
    return None


def page(package: Path) -> str:
    """All messages as Markdown, by kind and module."""
    found = messages(package)
    lines = [
        "# Every message",
        "",
        "Collected from the source; … stands for what is filled in. What is refused ends with exit status 2, a solve",
        "that failed with 1, and in Python with `InputError` and `SolveError`. Warnings are in `domain.warnings`,",
        "`solution.warnings`, `surface.notes` and in the report of the command line;",
        "[Troubleshooting](troubleshooting.md) explains each of them.",
    ]
    titles = {"warning": "Warnings and notes", "failed": "Solves that failed", "refused": "What is refused"}
    for kind, title in titles.items():
        lines += ["", f"## {title}"]
        module = ""
        for message in found:
            if message.kind != kind:
                continue
            if message.module != module:
                module = message.module
                lines += ["", f"`{module}`", ""]
            lines.append("- " + _escaped(message.text))
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Shown letter by letter: Markdown would read stars and brackets as its own."""
    return "`` " + " ".join(text.split()).replace("``", "` `") + " ``"


if __name__ == "__main__":
    package = Path(__file__).resolve().parent.parent / "src" / "lamina"
    chosen = sys.argv[1:] or ["warning", "failed", "refused"]
    for message in messages(package):
        if message.kind in chosen:
            print(f"{message.kind:<8} {message.module:<34} {message.text}")
