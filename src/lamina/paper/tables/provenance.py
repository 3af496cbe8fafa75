"""Machine, versions and date of a figure."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RECORDED_PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "pyamg",
    "cholespy",
    "scikit-sparse",
    "robust_laplacian",
    "neuraloperator",
)


def machine() -> dict[str, Any]:
    """CPU, cores, GPU and load. Times are unreliable if the load exceeds the number of threads in use."""
    found: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "platform": platform.platform(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "threads": torch.get_num_threads(),
        "gpu": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gb"] = round(properties.total_memory / 1e9, 1)
    return found


def versions() -> dict[str, str | None]:
    import lamina

    found: dict[str, str | None] = {"python": platform.python_version(), "lamina": lamina.__version__}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        said = subprocess.run(git, capture_output=True, text=True, check=True)
        found["commit"] = said.stdout.strip()
    found["cuda"] = torch.version.cuda
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def plain(value: Any) -> Any:
    """The value in JSON types. Infinities and NaN become null, floats keep six digits."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
