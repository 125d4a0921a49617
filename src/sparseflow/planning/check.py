"""One line of a diagnosis: what was looked at, whether it is well, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]
"""`warn`: it works, but slower or with less than this machine could give. `fail`: it does not work."""

_SEVERITY: tuple[Verdict, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Check:
    """What was found about one thing."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
    """What to do; empty where nothing has to be done."""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def conclude(name: str, found: str, *problems: tuple[Verdict, str, str]) -> Check:
    """A check of everything that is known about one thing.

    problems: (verdict, what is wrong or empty, remedy); the worst verdict counts, and all remedies are named. With no
    problem the verdict is ok.
    """
    wrong = [text for _, text, _ in problems if text]
    remedies = [remedy for _, _, remedy in problems if remedy]
    return Check(
        name,
        worst(verdict for verdict, _, _ in problems),
        "; ".join([found, *wrong] if found else wrong),
        "; ".join(remedies),
    )


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of them; ok if there is none."""
    return max(verdicts, key=_SEVERITY.index, default="ok")
