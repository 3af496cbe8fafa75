"""`lamina doctor`: what is installed, and whether it works."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from lamina.cli.options import Json, print_facts

REQUIRED_PACKAGES = ("torch", "numpy", "scipy", "safetensors", "plyfile", "pillow", "typer", "rich")
OPTIONAL_PACKAGES = {
    "IPython": "solutions inside notebooks",
    "trimesh": "tests of files",
    "igl": "tests of closest points",
    "pyamg": "the FEM baseline with multigrid",
    "cholespy": "the FEM baseline with Cholesky",
    "sphinx": "building the documentation",
}

# A check fails if its mean error over the range of the exact solution exceeds these. A sound installation has errors 3
# to 20 times smaller at the spacing of 0.1, so that only a broken one fails.
MAX_ERROR_ORDER_3 = 2e-5
MAX_ERROR_ORDER_2 = 2e-3
MAX_ERROR_HEAT = 1e-3
# The picture of a ball must cover between these shares of its pixels: less is an empty picture, more a filled one.
MIN_COVERED_SHARE = 0.3
MAX_COVERED_SHARE = 0.9


def doctor(json_: Json = False) -> None:
    """Print versions, devices and optional parts, and run a self-test of ten seconds. Status 1: a check failed."""
    facts = {**_versions(), **_devices(), **_optional()}
    if not json_:
        print_facts(facts, False)
        print()
    failed = 0
    checks: dict[str, dict[str, Any]] = {}
    for name, check in _checks().items():
        start = time.perf_counter()
        try:
            said, passed = check(), True
        except Exception as error:  # every kind of error is reported
            said, passed = f"{type(error).__name__}: {error}", False
        seconds = time.perf_counter() - start
        failed += not passed
        checks[name] = {"passed": passed, "said": said, "seconds": round(seconds, 2)}
        if not json_:
            print(f"{'pass' if passed else 'FAIL'}  {name:<32} {said}  ({seconds:.1f} s)", flush=True)
    if json_:
        print_facts({**facts, "checks": checks, "passed": not failed}, True)
    else:
        print(f"\n{failed} of {len(checks)} checks failed." if failed else f"\nAll {len(checks)} checks passed.")
    if failed:
        raise typer.Exit(1)


def _versions() -> dict[str, str]:
    found = {"lamina": _version("lamina"), "python": sys.version.split()[0], "platform": platform.platform()}
    return found | {name: _version(name) for name in REQUIRED_PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, Any]:
    import torch

    found = [f"cpu, {torch.get_num_threads()} threads"]
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(i)
        found.append(f"cuda:{i}, {properties.name}, {properties.total_memory / 1e9:.0f} GB")
    if len(found) == 1:
        found.append("no CUDA device")
    return {"devices": found}


def _optional() -> dict[str, Any]:
    found = {f"{name}, {what}": importlib.util.find_spec(name) is not None for name, what in OPTIONAL_PACKAGES.items()}
    found["ffmpeg, animations as MP4"] = shutil.which("ffmpeg") is not None
    return {"optional parts": [f"{'yes' if there else 'no '} {what}" for what, there in found.items()]}


def _checks() -> dict[str, Callable[[], str]]:
    """Checks by name: functions that return what they measured, or raise."""
    import torch

    checks = {
        "Poisson on the sphere, order 3": lambda: _poisson("cpu", 3, MAX_ERROR_ORDER_3),
        "Poisson on the sphere, order 2": lambda: _poisson("cpu", 2, MAX_ERROR_ORDER_2),
        "heat on the sphere": _heat,
        "files": _files,
        "a picture and a page": _views,
    }
    if torch.cuda.is_available():
        checks["Poisson on the GPU"] = lambda: _poisson("cuda", 3, MAX_ERROR_ORDER_3)
    return checks


def _poisson(device: str, order: int, max_error: float) -> str:
    import lamina
    from lamina.gallery import sphere_poisson

    problem = sphere_poisson()
    domain = lamina.Domain(problem.surface(level=4), 0.1, order=order, device=device, show_progress=False)
    u = lamina.poisson(domain, problem.rhs, show_progress=False)
    return _error(u.values, problem.solution(domain.points), max_error)


def _heat() -> str:
    import math

    import lamina

    domain = lamina.Domain(lamina.Sphere(), 0.1, show_progress=False)
    x = domain.points
    u = lamina.heat(domain, x[:, 0] * x[:, 1], 0.1, accuracy=1e-4, show_progress=False)
    return _error(u.values, math.exp(-0.6) * x[:, 0] * x[:, 1], MAX_ERROR_HEAT)


def _error(values: Any, exact: Any, max_error: float) -> str:
    from lamina.metrics import errors

    found = errors(values, exact, remove_mean=True).nmae
    if not found <= max_error:
        raise RuntimeError(f"mean error {found:.1e} of the range, expected {max_error:.0e} at most")
    return f"mean error {found:.1e} of the range"


def _files() -> str:
    import tempfile
    from pathlib import Path

    import torch

    import lamina
    from lamina.surfaces.icosphere import icosphere

    points, faces = icosphere(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ball.obj"
        lines = [f"v {x} {y} {z}" for x, y, z in points.tolist()]
        lines += [f"f {a} {b} {c}" for a, b, c in (faces + 1).tolist()]
        path.write_text("\n".join(lines) + "\n")
        surface = lamina.load(path)
    if not torch.allclose(surface.points, points.to(surface.points)):
        raise RuntimeError("an OBJ file was read differently from how it was written")
    return f"an OBJ of {len(points)} vertices"


def _views() -> str:
    import numpy as np

    from lamina.surfaces.icosphere import icosphere
    from lamina.view.page import page
    from lamina.view.render import render
    from lamina.view.scene import Scene

    points, faces = (a.numpy() for a in icosphere(3))
    picture = np.asarray(render(points, points[:, 0], faces=faces, size=(200, 200)))
    covered = float((picture != 255).any(2).mean())
    if not MIN_COVERED_SHARE < covered < MAX_COVERED_SHARE:
        raise RuntimeError(f"the picture of a ball covers {covered:.0%} of its pixels")
    size = len(page(Scene("ball", points, points[:, :1].T, faces=faces)).text)
    return f"{covered:.0%} of the pixels, {size / 1e6:.1f} MB"
