"""A bar of progress on stderr, with the remaining time, for work that takes longer than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[float, str], None]  # the fraction that is done, and a word about what is being done

# The bar appears after this many seconds, so that short work stays silent. Half of it would show bars that vanish at
# once, twice as much would leave users wondering.
SECONDS_BEFORE_BAR = 2.0


@contextmanager
def progress(what: str, show: bool | None) -> Iterator[Callable[[float, str], None]]:
    """Yield a function update(fraction, detail). show: True, False, or None for "only if stderr is a terminal".

    The package rich draws the bar. Without it there is none.
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

    delay = threading.Timer(SECONDS_BEFORE_BAR, bar.start)
    delay.daemon = True
    delay.start()
    try:
        yield update
    finally:
        delay.cancel()
        delay.join()
        if bar.live.is_started:
            bar.stop()
