"""lamina doctor, the help, and the ways to call the program."""

import importlib
import json
import subprocess
import sys

import pytest


def test_doctor_passes(program):
    status, out, _ = program("doctor")
    assert status == 0
    for word in ("torch", "devices", "optional parts", "pass  Poisson on the sphere", "checks passed."):
        assert word in out
    assert "FAIL" not in out


def test_doctor_says_what_failed(program, monkeypatch):
    def broken():
        raise RuntimeError("mean error 1 of the range")

    module = importlib.import_module("lamina.cli.doctor")  # as an attribute lamina.cli.doctor is the command
    monkeypatch.setattr(module, "_checks", lambda: {"heat": broken, "files": lambda: "fine"})
    status, out, _ = program("doctor")
    assert status == 1
    assert "FAIL  heat" in out
    assert "RuntimeError: mean error 1 of the range" in out
    assert "1 of 2 checks failed." in out
    status, out, _ = program("doctor", "--json")
    found = json.loads(out)
    assert (status, found["passed"], found["checks"]["files"]["passed"]) == (1, False, True)


def test_help_fits_a_screen_and_has_examples(program):
    status, out, _ = program("--help")
    lines = out.rstrip().split("\n")
    assert status == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "lamina solve heat bunny.obj" in out
    assert "lamina view result" in out
    for command in ("solve", "view", "info", "fit", "paper", "doctor"):
        assert f"  {command} " in out


def test_python_m_lamina():
    said = subprocess.run([sys.executable, "-m", "lamina", "--help"], capture_output=True, text=True, check=True).stdout
    assert "lamina view result" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(program, monkeypatch, shell):
    monkeypatch.setenv("_LAMINA_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "lamina do")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_WORDS", "lamina do")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "doctor" in program()[1]
