"""The documentation explains every warning and failure, and what it shows in Python works."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lamina
from lamina.surfaces.icosphere import icosphere

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def collected():
    specification = importlib.util.spec_from_file_location("messages", DOCS / "messages.py")
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules["messages"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module.messages(Path(lamina.__file__).parent)


def squeezed(text):
    return " ".join(text.replace("*", "").split())


def test_the_collection_finds_what_there_is(collected):
    kinds = [message.kind for message in collected]
    assert kinds.count("warning") >= 30
    assert kinds.count("failed") >= 6
    assert kinds.count("refused") >= 300
    assert any("faces have no area and were ignored" in message.text for message in collected)


def test_every_warning_and_failure_is_explained(collected):
    """A new one goes into docs/troubleshooting.md, with what to do about it."""
    explained = squeezed((DOCS / "troubleshooting.md").read_text())
    missing = []
    for message in collected:
        if message.kind == "refused":
            continue  # which say what to do themselves
        longest = max((squeezed(part).strip(" .,;:()") for part in message.text.split("…")), key=len)
        if longest not in explained:
            missing.append(message.text)
    assert missing == []


def test_what_is_refused_is_said_in_whole_sentences(collected):
    short = [m.text for m in collected if m.kind == "refused" and len(m.text.split()) < 4]
    assert short == []


def test_every_page_is_in_the_table_of_contents():
    index = (DOCS / "index.md").read_text()
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    pages.add("messages")  # which the build writes
    assert [page for page in sorted(pages) if not re.search(rf"^{re.escape(page)}$", index, re.MULTILINE)] == []


def test_pictures_of_the_documentation_are_there():
    for path in DOCS.rglob("*.md"):
        for name in re.findall(r"\{image\} (\S+)", path.read_text()):
            assert (path.parent / name).is_file(), f"{path.name}: {name}"


def test_the_three_commands_of_the_readme(program, tmp_path, monkeypatch):
    """Install, solve and look; the solve is run here on a mesh of one's own, which is large and off the centre."""
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"```\n(.*?)```", text, re.DOTALL)[0].strip().split("\n")
    assert len(commands) == 3
    assert text[: text.index(commands[2])].count("\n") < 24  # on the first screen
    install, solve, view = (shlex.split(command, comments=True) for command in commands)
    assert install == ["make", "install"]
    assert view == [".venv/bin/lamina", "view", "result"]
    assert "install:" in (ROOT / "Makefile").read_text()
    monkeypatch.chdir(tmp_path)
    points, faces = icosphere(3)
    lines = [f"v {300 * x + 50} {200 * y} {100 * z}" for x, y, z in points.tolist()]
    Path("bunny.obj").write_text("\n".join([*lines, *(f"f {a} {b} {c}" for a, b, c in (faces + 1).tolist())]))
    assert solve[0] == ".venv/bin/lamina"
    status, out, err = program(*solve[1:], "--accuracy", 1e-3)
    assert status == 0, err
    assert out.endswith("To look at it: lamina view result\n")
    picture = np.asarray(Image.open("result/solution.png").convert("RGB")).astype(int)
    assert (np.ptp(picture, axis=2) > 40).mean() > 0.1
    assert Path("result/solution.html").stat().st_size > 600_000
    with Image.open("result/solution.gif") as image:
        assert getattr(image, "n_frames", 1) == 24


def quoted_commands():
    """Commands of lamina in the code blocks of the documents: (words up to the first option or file, options)."""
    documents = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "experiments").glob("*/README.md")]
    found = {}
    for path in documents:
        for block in re.findall(r"```\w*\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("lamina "):
                    words = shlex.split(line, comments=True)[1:]
                    options = frozenset(word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word))
                    found[(tuple(words), options)] = path.name
    return found


def test_the_commands_that_documents_quote_have_these_names_and_options(program):
    commands = quoted_commands()
    assert len(commands) > 20
    for (words, options), document in commands.items():
        names = words[:2] if words[0] in ("solve", "fit", "paper") else words[:1]
        status, out, _ = program(*names, "--help")
        assert status == 0, f"{document}: {words}"
        missing = [name for name in options if not re.search(rf"(^|[ ,/]){re.escape(name)}\b", out, re.MULTILINE)]
        assert missing == [], f"{document}: {words}"
        if names == ("paper", "reproduce"):
            assert words[2] in {"all", "list", "TABLE", *tables()}, f"{document}: {words}"


def tables():
    from lamina.paper.tables.registry import TABLES

    return TABLES
