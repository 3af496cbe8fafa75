"""Progress on stderr for work that takes more than a moment; silent otherwise."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[float, str], None]  # fraction done, what is being done

PATIENCE = 2.0  # seconds before the first word
INTERVAL = 0.5  # seconds between two drawings


@contextmanager
def progress(what: str, show: bool | None) -> Iterator[Callable[[float, str], None]]:
    """Yield update(fraction, detail). show: True, False, or None for "when stderr is a terminal".

    A thread redraws the line, so that the clock runs on while one long operation does not report.
    """
    wanted = sys.stderr.isatty() if show is None else show
    if not wanted:
        yield lambda fraction, detail="": None
        return
    start = time.perf_counter()
    state: tuple[float, str] = (0.0, "")
    done = threading.Event()

    def update(fraction: float, detail: str = "") -> None:
        nonlocal state
        state = (min(max(fraction, 0.0), 1.0), detail)

    def draw() -> None:
        if done.wait(PATIENCE):
            return
        while True:
            fraction, detail = state
            elapsed = time.perf_counter() - start
            filled = round(24 * fraction)
            bar = "#" * filled + "." * (24 - filled)
            left = f"{elapsed * (1 - fraction) / fraction:.0f} s left" if fraction > 0.02 else f"{elapsed:.0f} s"
            sys.stderr.write(f"\r{what} [{bar}] {100 * fraction:3.0f}%  {left}  {detail}\x1b[K")
            sys.stderr.flush()
            if done.wait(INTERVAL):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                return

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        yield update
    finally:
        done.set()
        thread.join()
