"""Tests marked `data` need the evaluation shapes, tests marked `gpu` a CUDA device; without them they are skipped."""

import os
import sys
from pathlib import Path

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # on a bare GPU machine
    pass
else:
    # How long an example takes says more about what else the machine does than about the example.
    settings.register_profile("lamina", deadline=None)
    settings.load_profile("lamina")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = os.environ.get("LAMINA_DATA", "")
    missing = {}
    if not (folder and Path(folder).is_dir()):
        missing["data"] = f"LAMINA_DATA={folder!r} does not name a folder"
    if not torch.cuda.is_available():
        missing["gpu"] = "no CUDA device"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def data() -> Path:
    """The folder of evaluation shapes."""
    return Path(os.environ["LAMINA_DATA"])


@pytest.fixture
def program(monkeypatch, capsys):
    """Call the program in this process, as its entry point does; its status, stdout and stderr."""

    def call(*arguments):
        from lamina import cli  # which a bare GPU machine cannot import

        monkeypatch.setattr(sys, "argv", ["lamina", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return call
