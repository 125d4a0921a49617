"""What a model of a hub is called here: `ORG/NAME:RECIPE`, in the directory `ORG--NAME--RECIPE`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparseflow.container.recipes import RECIPES

SEPARATOR = "--"
"""No hub allows it in names."""
CHECKPOINT_SUFFIX = ".checkpoint"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?::(?P<recipe>[a-z0-9-]+))?(?:@(?P<revision>[\w./-]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class HubName:
    """A model of a hub as people write it."""

    repo_id: str
    """ORG/NAME."""
    recipe: str | None = None
    revision: str | None = None


def parse_hub_name(text: str) -> HubName | None:
    """What `ORG/NAME`, `ORG/NAME:RECIPE` or `ORG/NAME@REVISION` means; None for anything else."""
    match = _NAME.fullmatch(text)
    if match is None or SEPARATOR in match["repo"] or ".." in match["repo"]:
        return None
    return HubName(match["repo"], match["recipe"], match["revision"])


def container_path(models_dir: Path, repo_id: str, recipe: str) -> Path:
    """Where the container of a hub's model lies."""
    return models_dir / SEPARATOR.join((*repo_id.split("/"), recipe))


def checkpoint_path(container: Path) -> Path:
    """Where the checkpoint that a container is made of is kept, if it is: beside it."""
    return container.with_name(container.name + CHECKPOINT_SUFFIX)


def shown_name(directory: Path) -> str:
    """The name of a container in the models directory: `ORG/NAME:RECIPE` for a hub's, else the directory's own."""
    parts = directory.name.split(SEPARATOR)
    if len(parts) == 3 and all(parts) and parts[2] in RECIPES:
        return f"{parts[0]}/{parts[1]}:{parts[2]}"
    return directory.name
