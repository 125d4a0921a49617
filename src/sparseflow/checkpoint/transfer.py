"""Bytes from a hub over HTTP: broken connections, 429 and 5xx are tried again, everything else is one clear error.

The session is huggingface_hub's own, so proxies, certificates and offline mode are what its user has set.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from sparseflow.errors import CheckpointError, ConfigError, SparseFlowError, StorageError

Result = TypeVar("Result")

# The session's kind of client differs between versions of huggingface_hub; the base of its own error is that client's.
_ClientError: type[Exception] = next(
    base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError"
)
TIMEOUT_SECONDS = 15.0
"""Without a byte from the hub; then the connection counts as broken."""
RETRIED_STATUS = (408, 429, *range(500, 600))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a hub that does not answer is asked again."""

    tries: int = 7
    """In a row without a new byte."""
    first_wait: float = 1.0
    """Seconds after the first failure; twice as many after each further one."""
    longest_wait: float = 60.0
    longest_asked: float = 600.0
    """Of what the hub asks for, which goes before."""


class InterruptedTransferError(Exception):
    """A failure that may pass: what happened, and the seconds that the hub asks to wait (0: it does not say)."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def persist(
    what: str,
    patience: Patience,
    attempt: Callable[[], Result],
    stop: threading.Event | None = None,
    position: Callable[[], int] = lambda: 0,
) -> Result:
    """What `attempt` returns, tried again after each InterruptedTransferError; a try that moved `position` on starts
    the count anew.

    Raises StorageError, beginning with `what`, when patience ends; CancelledError once `stop` is set.
    """
    stop = stop or threading.Event()
    failures, before = 0, position()
    while True:
        try:
            return attempt()
        except InterruptedTransferError as problem:
            now = position()
            failures, before = (1 if now > before else failures + 1), now
            if failures >= patience.tries:
                raise StorageError(
                    f"{what}: {problem}, {failures} times in a row; try the same command again later"
                ) from None
            wait = min(patience.first_wait * 2 ** (failures - 1), patience.longest_wait)
            wait = max(wait, min(problem.wait, patience.longest_asked))
        if stop.wait(wait):
            raise CancelledError


@contextmanager
def http_errors(what: str, status_error: Callable[[int], SparseFlowError]) -> Iterator[None]:
    """Turns what the session raises inside the block into InterruptedTransferError or the error for a status."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise ConfigError(
            f"{what}: not asked for, since HF_HUB_OFFLINE is set; unset it to download"
        ) from None
    except HfHubHTTPError as problem:
        check_status(problem.response.status_code, problem.response.headers, status_error)
        raise StorageError(f"{what}: the hub's answer: {problem}") from None
    except (_ClientError, ConnectionError, TimeoutError) as problem:
        raise InterruptedTransferError(
            f"connection failed ({str(problem) or type(problem).__name__})"
        ) from None


def check_status(
    status: int, headers: Mapping[str, str], status_error: Callable[[int], SparseFlowError]
) -> None:
    """Raises InterruptedTransferError for a status that may pass, else the error for one that says no."""
    if status in RETRIED_STATUS:
        raise InterruptedTransferError(f"the hub answered {status}", _asked_wait(headers))
    if status >= 400:
        raise status_error(status)


@contextmanager
def open_range(
    url: str,
    headers: Mapping[str, str],
    begin: int,
    end: int,
    status_error: Callable[[int], SparseFlowError],
) -> Iterator[Iterator[bytes]]:
    """The bytes [begin, end) of a URL, in pieces as they arrive, also from a server that does not know ranges.

    Raises InterruptedTransferError for what may pass, a connection that ends early among it, and the error for a status
    that says no.
    """
    asked = {**headers, "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    with (
        http_errors(url, status_error),
        get_session().stream("GET", url, headers=asked, timeout=TIMEOUT_SECONDS) as answer,
    ):
        check_status(answer.status_code, answer.headers, status_error)
        first = begin
        if answer.status_code != 206:
            first = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            raise CheckpointError(f"{url}: the hub sent other bytes than those asked for")
        yield _cut(answer.iter_raw(), begin - first, end - begin)


def _cut(pieces: Iterator[bytes], skipped: int, wanted: int) -> Iterator[bytes]:
    """`wanted` bytes after the first `skipped`."""
    left = wanted
    for piece in pieces:
        useful = piece[skipped : skipped + left]
        skipped = max(0, skipped - len(piece))
        left -= len(useful)
        if useful:
            yield useful
        if not left:
            return
    raise InterruptedTransferError(f"the connection ended after {wanted - left} of {wanted} bytes")


def _asked_wait(headers: Mapping[str, str]) -> float:
    """Seconds that the hub asks to wait: Retry-After, or what RateLimit says (`"api";r=0;t=55`). No date is read."""
    limit = _RATE_LIMIT.search(headers.get("RateLimit", ""))
    text = headers.get("Retry-After", "0") if limit is None else limit[1]
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d*)?", text) else 0.0


_RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
