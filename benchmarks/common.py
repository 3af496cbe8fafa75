"""What every benchmark shares: the results file with the machine and versions in it, clocks, and children.

Imports nothing but the standard library until it is called, so that a benchmark can set threads first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
RESULTS = BENCHMARKS / "results"


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with the one option that all of them have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results file")
    return made


ORDERS = {"trace": 2, "order 2": 2, "order 3": 3, "auto": "auto"}


def domain_of(scheme: str, surface: Any, spacing: float | None = None, **options: Any) -> Any:
    """A domain by a name that results files know: lamina's own orders, or the baselines "coupled" and "shell"."""
    import lamina

    if scheme in ORDERS:
        return lamina.Domain(surface, spacing, **{"order": ORDERS[scheme]} | options)
    return lamina.paper.BandDomain(surface, spacing, scheme=scheme, **options)


def record(name: str, figures: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write folder/name.json: machine, versions, date and command beside the figures; whole or not at all."""
    from lamina.paper.tables.provenance import machine, now, plain, versions

    document = {
        "benchmark": name,
        "date": now(),
        "command": shlex.join(["python", _shown(Path(sys.argv[0])), *_without_out(sys.argv[1:])]),
        "machine": machine(),
        "versions": versions(),
        "figures": figures,
    }
    return write(folder / f"{name}.json", json.dumps(plain(document), indent=1) + "\n")


def write(path: Path, text: str) -> Path:
    """Put text into path by way of a temporary file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return path


def synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


class Stopwatch:
    """Laps in seconds, with whatever the device still has to do counted in."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        synchronize(device)
        self._last = self._start = perf_counter()

    def lap(self) -> float:
        synchronize(self.device)
        before, self._last = self._last, perf_counter()
        return self._last - before

    def total(self) -> float:
        return self._last - self._start


def in_turn(cases: Sequence[Callable[[], Any]], rounds: int) -> list[list[Any]]:
    """Results of every case, run turn and turn about: whatever else the machine does slows all alike."""
    results: list[list[Any]] = [[] for _ in cases]
    for _ in range(rounds):
        for case, found in zip(cases, results, strict=True):
            found.append(case())
    return results


def best(times: Sequence[dict[str, float]]) -> dict[str, float]:
    """The smallest of each time; that of a total is the best whole run, not the sum of the best parts."""
    return {key: min(t[key] for t in times) for key in times[0]}


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float | None:
    """p of the least-squares fit times = c sizes^p; None for fewer than two sizes."""
    if len(sizes) < 2:
        return None
    x, y = [math.log(s) for s in sizes], [math.log(t) for t in times]
    centre = sum(x) / len(x)
    return sum((a - centre) * b for a, b in zip(x, y, strict=True)) / sum((a - centre) ** 2 for a in x)


def child(script: str, *arguments: str, cores: int | None = None, timeout: float | None = None) -> Any:
    """What `python script arguments` prints as its last line, read as JSON.

    cores: the process is held to that many processors and threads, whatever its libraries would like.
    Raises CalledProcessError or TimeoutExpired.
    """
    finished = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment(cores),
        preexec_fn=None if cores is None else lambda: pin(cores),
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=True,
    )
    return json.loads(finished.stdout.splitlines()[-1])


def environment(cores: int | None) -> dict[str, str]:
    """The environment of a process whose libraries use that many threads."""
    if cores is None:
        return dict(os.environ)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **{name: str(cores) for name in names}}


def pin(cores: int) -> None:
    """Hold this process to the first `cores` processors that it may use, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[dict[str, float]]:
    """Bytes taken at the worst moment inside the block beyond those before it, under "bytes" at its end.

    On the GPU what torch allocated; on the CPU the resident size, for which the block must be the first
    large one of its process: memory that was freed before and is used again does not count.
    """
    found: dict[str, float] = {}
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        torch.cuda.synchronize()
        found["bytes"] = float(torch.cuda.max_memory_allocated() - before)
        found["reserved"] = float(torch.cuda.max_memory_reserved())
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forgets the high-water mark so far
        before = _resident("VmRSS")
        yield found
        found["bytes"] = _resident("VmHWM") - before


def _resident(field: str) -> float:
    """VmRSS or VmHWM of this process in bytes; where there is no /proc, the high-water mark for both."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def _without_out(arguments: Sequence[str]) -> list[str]:
    """The arguments less --out and its folder: where the file was written first says nothing to its readers."""
    before = [None, *arguments]
    return [a for a, b in zip(arguments, before, strict=False) if b != "--out" and not a.startswith("--out")]


def _shown(script: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(script.resolve().relative_to(BENCHMARKS.parent))
    return str(script)
