"""Recorded routes: which experts a real model chose, token by token. An .npz file without pickles.

Arrays: `sessions` (names) and, for each session S, `S_experts` [tokens, layers, k] (ids, falling router weight),
`S_tokens` [tokens] (token ids) and `S_decode` [tokens] (0: a row of the one prefill pass, 1: a decode step).
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparseflow.errors import ConfigError, StorageError

SHARED_START = 8
"""Two sessions that generate so many equal tokens at first know too much of one another."""
MAX_IDS = 1 << 28

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Session:
    """One text: a prompt in one forward pass, then one pass a token. Ids of a row: the heaviest expert last."""

    name: str
    prompt: Ids  # [tokens, layers, k]
    decode: Ids  # [tokens, layers, k]
    generated: tuple[int, ...]
    """Ids of the decoded tokens."""

    @property
    def lookups(self) -> int:
        """Experts that the decode steps asked for."""
        return self.decode.size

    def passes(self) -> list[Ids]:
        """What each forward pass chose."""
        prompt = [self.prompt] if len(self.prompt) else []
        return prompt + [self.decode[i : i + 1] for i in range(len(self.decode))]

    def shares_start_with(self, other: Session) -> bool:
        """Whether both generate the same text at first, so that one's routes give the other's away."""
        return self.generated[:SHARED_START] == other.generated[:SHARED_START]


@dataclass(frozen=True, slots=True)
class Routes:
    """All sessions of a file; they agree in layers and experts a token."""

    sessions: tuple[Session, ...]
    num_layers: int
    num_experts: int
    num_experts_per_tok: int

    def others(self, session: Session) -> list[Session]:
        """The sessions that may be learned from before `session` is replayed."""
        return [s for s in self.sessions if s is not session and not s.shares_start_with(session)]


def read_routes(path: Path, num_experts: int | None = None) -> Routes:
    """num_experts: of a layer; None: the highest id in the file and one more.

    Raises StorageError if the file cannot be read, ConfigError if it holds no routes.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            sessions = tuple(_read_session(arrays, str(name)) for name in arrays["sessions"])
    except OSError as error:
        raise StorageError(
            f"{path}: cannot read the routes: {error.strerror or error}",
            path=str(path),
            errno=error.errno,
        ) from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: not a file of routes: {' '.join(str(error).split())}") from None
    shapes = {session.decode.shape[1:] for session in sessions}
    if len(shapes) != 1:
        raise ConfigError(f"{path}: its sessions differ in layers or experts a token: {shapes}")
    num_layers, k = shapes.pop()
    found = 1 + max(int(ids.max()) for s in sessions for ids in s.passes())
    if num_experts is not None and num_experts < found:
        raise ConfigError(
            f"{path}: names expert {found - 1}; --num-experts must be at least {found}"
        )
    return Routes(sessions, num_layers, num_experts or found, k)


def _read_session(arrays: np.lib.npyio.NpzFile, name: str) -> Session:
    experts, is_decode = arrays[f"{name}_experts"], arrays[f"{name}_decode"].astype(bool)
    tokens = arrays[f"{name}_tokens"]
    if experts.ndim != 3 or experts.dtype.kind not in "iu" or experts.size > MAX_IDS:
        raise ValueError(f"{name}_experts must hold integers [tokens, layers, k]")
    if is_decode.shape != experts.shape[:1] or tokens.shape != experts.shape[:1]:
        raise ValueError(f"{name}: arrays differ in their number of tokens")
    if not is_decode.any() or 0 in experts.shape or (np.diff(is_decode.astype(int)) < 0).any():
        raise ValueError(f"{name}: must be a prompt and then at least one decoded token")
    if int(experts.min()) < 0 or int(experts.max()) >= 1 << 16:
        raise ValueError(f"{name}_experts: ids must be 0 to 65535")
    ordered = np.sort(experts, axis=2)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise ValueError(f"{name}_experts: an expert is chosen twice by one token")
    rows = np.ascontiguousarray(experts[..., ::-1], dtype=np.int32)
    generated = tuple(int(token) for token in tokens[is_decode])
    return Session(name, rows[~is_decode], rows[is_decode], generated)
