"""The public names of lamina with the parameters of each, and of their methods.

    python tests/public.py      # write public.json, at a release

public.json has those of version 0.1. A name or parameter that has gone must still work with a warning that says what to
write.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("public.json")
ROOMS = ("lamina", "lamina.nn", "lamina.paper", "lamina.baselines")


def parameters(of: Any) -> list[str]:
    try:
        return [p for p in inspect.signature(of).parameters if p != "self"]
    except (TypeError, ValueError):
        return []


def names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for room in ROOMS:
        try:
            module = importlib.import_module(room)
        except ModuleNotFoundError:  # in an earlier version
            continue
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.ismodule(value):
                continue
            found[f"{room}.{name}"] = parameters(value)
            if inspect.isclass(value):
                for method in dir(value):
                    own = any(method in vars(c) for c in value.__mro__ if c.__module__.startswith("lamina"))
                    if own and not method.startswith("_"):
                        found[f"{room}.{name}.{method}"] = parameters(getattr(value, method))
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(names(), indent=1) + "\n")
