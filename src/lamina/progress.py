"""Progress on stderr, with the time left, for work that takes more than a moment; silent otherwise."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[float, str], None]  # fraction done, what is being done

PATIENCE = 2.0  # seconds before the first word


@contextmanager
def progress(what: str, show: bool | None) -> Iterator[Callable[[float, str], None]]:
    """Yield update(fraction, detail). show: True, False, or None for "when stderr is a terminal".

    rich draws; a machine without it, which has the numerical core alone, works in silence.
    """
    wanted = sys.stderr.isatty() if show is None else show
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        wanted = False
    if not wanted:
        yield lambda fraction, detail="": None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(24),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("left  {task.fields[detail]}"),
        console=Console(stderr=True, force_terminal=True if show else None),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task(what, total=1.0, detail="")

    def update(fraction: float, detail: str = "") -> None:
        bar.update(task, completed=min(max(fraction, 0.0), 1.0), detail=detail)

    patience = threading.Timer(PATIENCE, bar.start)
    patience.daemon = True
    patience.start()
    try:
        yield update
    finally:
        patience.cancel()
        patience.join()
        if bar.live.is_started:
            bar.stop()
