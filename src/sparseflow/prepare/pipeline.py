"""Work on threads that hands back its results in order, with a bound on what is in memory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sparseflow.host.cpu import default_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """function(item) for each item, in the order of `items`, on two threads a core: while one reads, one computes.

    Items are drawn on the calling thread, at most two for each thread ahead of the result that is handed back. What
    `function` raises is raised where its result would have been. Closing the iterator waits for what has begun.
    """
    threads = 2 * default_threads()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="prepare") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
