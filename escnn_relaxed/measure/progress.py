"""Progress of long computations on a terminal; a bar if ``rich`` is installed (the extra ``examples``)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


def say(text: str, verbose: bool) -> None:
    """Print a line to standard error if it is a terminal."""
    if verbose and _is_terminal():
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(title: str, steps: int, verbose: bool) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; a terminal shows a bar, or a line without ``rich``."""
    if not (verbose and _is_terminal()):
        yield lambda: None
        return
    try:
        from rich.console import Console
        from rich.errors import LiveError
        from rich.progress import Progress
    except ModuleNotFoundError:
        say(f"{title} …", verbose)
        yield lambda: None
        return
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=steps)
    # Older versions of rich draw one bar at a time, and the caller may have one.
    with contextlib.suppress(LiveError):
        bar.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        bar.stop()


def _is_terminal() -> bool:
    # A program without a console has no standard error.
    return sys.stderr is not None and sys.stderr.isatty()
