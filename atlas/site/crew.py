"""Jobs done ahead by other processes, for the one who will need their results."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from atlas.process import die_with_parent

T = TypeVar("T")
Jobs = dict[str, Callable[[], T]]
MOST = 3  # helpers: more would take longer to start than they save


def helpers() -> int:
    """How many processes may help: one for every core but our own, a few at most.

    None beside other threads (`mkdocs serve`): a lock that one of them holds would
    stay locked in a forked process. None but on Linux: elsewhere a fork is missing,
    or the system's own libraries do not survive it.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return 0
    return min(MOST, len(os.sched_getaffinity(0)) - 1)


class Crew(Generic[T]):
    """Helpers that do the jobs from the last to the first.

    Whoever needs the results asks for them from the first to the last, and does
    himself what nobody has begun: they meet in the middle. A job that fails or logs
    anything counts as not done. It is done again by the one who asks, so that errors
    and warnings come from where they always came from, in the order they always had.
    """

    def __init__(self, jobs: Jobs[T]) -> None:
        self._begun: dict[str, Future[tuple[T] | None]] = {}
        self._pool: ProcessPoolExecutor | None = None
        if many := helpers():
            # Forked, a helper has the jobs by inheritance: they need no pickling.
            given = (jobs, os.getpid())
            self._pool = ProcessPoolExecutor(many, get_context("fork"), _start, given)
            for name in reversed(jobs):
                self._begun[name] = self._pool.submit(_do, name)

    def take(self, name: str) -> T | None:
        """The job's result, waited for if need be; None: do it yourself."""
        begun = self._begun.pop(name, None)
        if begun is None or begun.cancel():
            return None
        try:
            done = begun.result()
        except BrokenProcessPool:  # a helper was killed: the rest is ours again
            return None
        return done[0] if done else None

    def close(self) -> None:
        """Let the helpers go."""
        self._begun.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Crew[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Ear(logging.Handler):
    """Hears whether anything was said."""

    heard = False

    def emit(self, record: logging.LogRecord) -> None:
        self.heard = True


_jobs: Jobs[Any] = {}
_ear = _Ear()


def _start(jobs: Jobs[Any], asker: int) -> None:
    """In a new helper: take the jobs, say nothing aloud, go when told to."""
    die_with_parent(asker)
    _jobs.update(jobs)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for logger in map(logging.getLogger, list(logging.root.manager.loggerDict)):
        logger.handlers.clear()
        logger.propagate = True  # to the ear, whoever kept it to himself
    logging.root.handlers[:] = [_ear]


def _do(name: str) -> tuple[Any] | None:
    _ear.heard = False
    try:
        made = _jobs[name]()
    except (Exception, SystemExit):
        return None
    return None if _ear.heard else (made,)
