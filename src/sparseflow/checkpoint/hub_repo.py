"""A model on a hub at one commit: which files it has, as the hub says, and where they are fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from sparseflow.checkpoint.transfer import TIMEOUT_SECONDS, Patience, http_errors, persist
from sparseflow.errors import CheckpointError, ConfigError, SparseFlowError, StorageError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_FILE_BYTES = 1 << 50
FIRST_TRIES = 3
"""Of the first question, while somebody waits and the name may be wrong."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """What a hub says of one file."""

    name: str
    nbytes: int
    sha256: str | None
    """None: the file is small and kept in git itself."""
    git_sha1: str | None
    """Of `blob SIZE`, a zero byte and the contents, as git names them."""


@dataclass(frozen=True)
class HubRepo:
    """A model on a hub at one commit. Made by `open_hub`."""

    repo_id: str
    commit: str
    """40 hexadecimal digits; every file is fetched at this commit, whatever happens to the branch."""
    endpoint: str
    files: Mapping[str, HubFile]
    token: str | None = field(default=None, repr=False)
    patience: Patience = field(default_factory=Patience)

    def get(self, name: str) -> HubFile:
        """Raises CheckpointError if there is no such file."""
        if name not in self.files:
            raise CheckpointError(f"{self}: no file {name!r}")
        return self.files[name]

    def url(self, name: str) -> str:
        """Where a file is fetched."""
        return hf_hub_url(self.repo_id, name, revision=self.commit, endpoint=self.endpoint)

    @cached_property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every request: who asks, and the token, which may be one that was saved before."""
        return dict(build_hf_headers(token=self.token, library_name="sparseflow"))

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.repo_id} at {self.commit[:12]}"


def open_hub(
    repo_id: str,
    revision: str | None = None,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    patience: Patience | None = None,
) -> HubRepo:
    """Asks the hub which files `repo_id` (ORG/NAME) has at `revision` (branch, tag or commit; default: main).

    `endpoint` and `token` default to huggingface_hub's own: HF_ENDPOINT, HF_TOKEN or a saved login.

    Raises ConfigError if there is no such model or revision or it may not be read, StorageError if the hub does not
    answer, CheckpointError if its answer makes no sense.
    """
    api = HfApi(endpoint=endpoint, token=token)
    endpoint = str(api.endpoint).rstrip("/")
    what = f"{endpoint}/{repo_id}"

    def ask() -> Any:
        with http_errors(what, lambda status: refusal(what, status, revision)):
            return api.model_info(
                repo_id, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS
            )

    patience = patience or Patience()
    first = replace(patience, tries=min(patience.tries, FIRST_TRIES))
    try:
        info = persist(what, first, ask)
        files = {file.name: file for file in map(_file, info.siblings or [])}
    except HFValidationError as problem:
        raise ConfigError(f"{repo_id!r} is no name of a model on a hub: {problem}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise CheckpointError(f"{what}: the hub's answer makes no sense: {problem}") from None
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise CheckpointError(f"{what}: the hub names no commit")
    return HubRepo(repo_id, info.sha, endpoint, files, token, patience)


def refusal(what: str, status: int, revision: str | None = None) -> SparseFlowError:
    """The error for an HTTP status that says no."""
    if status in (401, 403):
        return ConfigError(
            f"{what}: the hub refuses access ({status}): no such model, or a private or gated one; ask for access"
            " on its page, and set HF_TOKEN to a token that may read it"
        )
    if status == 404:
        where = "" if revision is None else f" with a revision {revision!r}"
        return ConfigError(
            f"{what}: no such model{where} on the hub, or a private one (set HF_TOKEN)"
        )
    if status == 416:
        return CheckpointError(f"{what}: a file is shorter than the hub said")
    return StorageError(f"{what}: the hub answered {status}")


def _file(sibling: Any) -> HubFile:
    """Checked, since it comes from a stranger. Raises ValueError."""
    lfs = sibling.lfs
    name, nbytes = sibling.rfilename, sibling.size if lfs is None else lfs.size
    sha256 = None if lfs is None else lfs.sha256
    git_sha1 = sibling.blob_id if lfs is None else None
    if type(nbytes) is not int or not 0 <= nbytes <= MAX_FILE_BYTES:
        raise ValueError(f"{name!r} has a size of {str(nbytes)[:20]}")
    if lfs is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise ValueError(f"{name!r} has no SHA-256")
    if git_sha1 is not None and not (isinstance(git_sha1, str) and _COMMIT.fullmatch(git_sha1)):
        raise ValueError(f"{name!r} has no git hash")
    return HubFile(str(name), nbytes, sha256, git_sha1)
