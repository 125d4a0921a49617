"""What an earlier report of the targets measured, to go on from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparseflow.bench.measure import Row
from sparseflow.bench.peer import Setting, Trial
from sparseflow.bench.targets import TARGETS, Outcome, outcome
from sparseflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Earlier:
    """Outcomes that have a value, and what they came from; by name."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    trials: dict[str, list[Trial]] = field(default_factory=dict)


def read_report(path: Path) -> Earlier:
    """A file that `--report targets --json` wrote. Raises ConfigError."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {
            each["name"]: outcome(each["name"], each["value"], each["reason"])
            for each in document["targets"]
            if each["value"] is not None and each["name"] in TARGETS
        }
        trials = {
            name: [_trial(each) for each in tried] for name, tried in document["trials"].items()
        }
        return Earlier(outcomes, dict(document["rows"]), trials)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: not a report of `sparseflow bench --report targets`") from None


def _trial(values: dict[str, Any]) -> Trial:
    setting = Setting(**values["setting"])
    return Trial(setting, values["decode"], values["prefill"], values["problem"])
