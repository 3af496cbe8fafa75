"""Progress on stderr for work that takes more than a moment; silent otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds before the first word


@contextmanager
def progress(what: str, show: bool | None) -> Iterator[Callable[[float, str], None]]:
    """Yield update(fraction, detail). show: True, False, or None for "when stderr is a terminal"."""
    wanted = sys.stderr.isatty() if show is None else show
    start = time.perf_counter()
    shown = False
    last = start

    def update(fraction: float, detail: str = "") -> None:
        nonlocal shown, last
        now = time.perf_counter()
        if not wanted or now - start < PATIENCE or now - last < 0.1:
            return
        last, shown = now, True
        fraction = min(max(fraction, 0.0), 1.0)
        done = round(24 * fraction)
        left = (now - start) * (1 - fraction) / fraction if fraction > 0 else 0.0
        bar = "#" * done + "." * (24 - done)
        sys.stderr.write(f"\r{what} [{bar}] {100 * fraction:3.0f}%  {left:.0f} s left  {detail}\x1b[K")
        sys.stderr.flush()

    try:
        yield update
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
