"""A server on the loopback interface that speaks the part of a hub's API that is used here, and fails on command.

It serves a directory as the model ORG/NAME at one commit: the model's facts, and its files with ranges, large ones
through a redirect, as a hub with a content network does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLOCK_BYTES = 64 << 10
_FILE = re.compile(r"/(?P<where>[^/]+/[^/]+|cdn)/resolve/(?P<revision>[^/]+)/(?P<name>[^/]+)")
_FACTS = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")


@dataclass
class Fault:
    """What goes wrong, so many times, with requests for `name` (`api`: the model's facts)."""

    name: str
    kind: str
    """`status`, `drop`, `flip` (wrong bytes), `ignore-range`, `cut` (fewer bytes, as if that were all)."""
    times: int = 1
    status: int = 500
    after_bytes: int = 0
    """Of the body, for `drop` and `cut`; the byte of the file that `flip` changes."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer, for `status`."""
    skip: int = 0
    """Requests that go well before."""


@dataclass
class Hub:
    """What is served, what shall fail, and what was asked for."""

    directory: Path
    repo_id: str = "org/model"
    commit: str = COMMIT
    """Of the main branch."""
    old_commits: set[str] = field(default_factory=set)
    token: str | None = None
    """If given, asked for."""
    bytes_per_second: float | None = None
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(name, Range header) of every request for a file, `api` for the facts."""
    served: dict[str, int] = field(default_factory=dict)
    """Bytes of bodies by file."""
    tokens_at_cdn: list[str] = field(default_factory=list)
    url: str = ""
    cdn_url: str = ""
    """Another origin, to which no token may be sent."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts of single files that are told wrongly."""

    @property
    def total_served(self) -> int:
        """Bytes of all bodies of files."""
        return sum(self.served.values())

    def take_fault(self, name: str, kinds: set[str]) -> Fault | None:
        """The next fault of these kinds for that file; it is used up."""
        with self.lock:
            for fault in self.faults:
                if fault.name != name or fault.kind not in kinds or fault.times == 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def find_commit(self, revision: str | None) -> str | None:
        """The commit that a revision is, None if there is none."""
        if revision in (None, "main"):
            return self.commit
        return revision if revision in {self.commit, *self.old_commits} else None

    def facts(self, commit: str) -> dict[str, Any]:
        """As /api/models/ORG/NAME?blobs=true answers."""
        siblings = []
        for path in sorted(self.directory.iterdir()):
            raw = path.stat().st_size
            entry: dict[str, Any] = {"rfilename": path.name, "size": raw}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"size": raw, "sha256": _sha256(path), "pointerSize": 135}
                entry["blobId"] = "f" * 40
            else:
                data = path.read_bytes()
                entry["blobId"] = hashlib.sha1(f"blob {raw}\0".encode() + data).hexdigest()
            siblings.append({**entry, **self.overrides.get(path.name, {})})
        return {
            "id": self.repo_id,
            "modelId": self.repo_id,
            "sha": commit,
            "siblings": siblings,
        }


_HASHES: dict[tuple[str, int, int], str] = {}


def _sha256(path: Path) -> str:
    key = (str(path), path.stat().st_size, path.stat().st_mtime_ns)
    if key not in _HASHES:
        with path.open("rb") as file:
            _HASHES[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _HASHES[key]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words: Any) -> None:
        """Nothing: the tests read Hub.requests."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        facts, file = _FACTS.fullmatch(path), _FILE.fullmatch(path)
        if facts is not None:
            self._send_facts(unquote(facts["repo"]), facts["revision"])
        elif file is not None:
            self._send_file(file["where"], unquote(file["revision"]), unquote(file["name"]))
        else:
            self._refuse(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_facts(self, repo: str, revision: str | None) -> None:
        self.hub.requests.append(("api", None))
        if self._fails("api") or self._is_stranger():
            return
        commit = self.hub.find_commit(revision)
        if repo != self.hub.repo_id or commit is None:
            self._refuse(404, {"X-Error-Code": "RepoNotFound"})
            return
        body = json.dumps(self.hub.facts(commit)).encode()
        self._begin(200, len(body), {"Content-Type": "application/json"})
        if self.command == "GET":
            self.wfile.write(body)

    def _send_file(self, where: str, revision: str, name: str) -> None:
        path = self.hub.directory / name
        is_cdn = where == "cdn"
        if is_cdn:
            self.hub.tokens_at_cdn += [self.headers.get("Authorization", "")]
        elif self._is_stranger():
            return
        if (
            not path.is_file()
            or self.hub.find_commit(revision) is None
            or (where not in ("cdn", self.hub.repo_id))
        ):
            self._refuse(404, {"X-Error-Code": "EntryNotFound"})
            return
        if path.suffix == ".safetensors" and not is_cdn:
            headers = {"Location": f"{self.hub.cdn_url}/cdn/resolve/{revision}/{name}", "X-Repo-Commit": revision,
                       "X-Linked-Size": str(path.stat().st_size), "X-Linked-Etag": f'"{_sha256(path)}"'}  # fmt: skip
            self._begin(302, 0, headers)
            return
        self.hub.requests.append((name, self.headers.get("Range")))
        if not self._fails(name):
            self._send_body(path)

    def _send_body(self, path: Path) -> None:
        size, begin, end, status = path.stat().st_size, 0, path.stat().st_size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        headers = {"ETag": f'"{path.name}"', "X-Repo-Commit": self.hub.commit}
        if asked is not None and self.hub.take_fault(path.name, {"ignore-range"}) is None:
            begin, end = int(asked[1]), min(size, int(asked[2] or size) + 1)
            if begin >= size:
                self._refuse(416)
                return
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        fault = self.hub.take_fault(path.name, {"drop", "flip", "cut"})
        if fault is not None and fault.kind == "cut":
            end = min(end, begin + fault.after_bytes)
        self._begin(status, end - begin, headers)
        if self.command == "GET":
            self._write(path, begin, end, fault)

    def _write(self, path: Path, begin: int, end: int, fault: Fault | None) -> None:
        last = end
        if fault is not None and fault.kind == "drop":
            last = min(end, begin + fault.after_bytes)
        with path.open("rb") as file, contextlib.suppress(OSError):
            file.seek(begin)
            position = begin
            while position < last:
                data = bytearray(file.read(min(BLOCK_BYTES, last - position)))
                if fault is not None and fault.kind == "flip":
                    place = fault.after_bytes - position
                    if 0 <= place < len(data):
                        data[place] ^= 0x40
                        fault = None
                self.wfile.write(data)
                position += len(data)
                with self.hub.lock:
                    self.hub.served[path.name] = self.hub.served.get(path.name, 0) + len(data)
                if self.hub.bytes_per_second is not None:
                    time.sleep(len(data) / self.hub.bytes_per_second)
        if fault is not None and fault.kind == "flip":
            fault.times += 1  # the client was gone before that byte
        if last < end:
            self.close_connection = True

    def _fails(self, name: str) -> bool:
        fault = self.hub.take_fault(name, {"status"})
        if fault is None:
            return False
        self._refuse(fault.status, fault.headers)
        return True

    def _is_stranger(self) -> bool:
        if (
            self.hub.token is None
            or self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        ):
            return False
        self._refuse(401, {"X-Error-Code": "GatedRepo"})
        return True

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._begin(status, 0, headers or {})

    def _begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error."""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serves until the block ends; `hub.url` is the endpoint."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    hub.cdn_url = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
