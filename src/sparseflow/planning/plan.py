"""Will it run, how fast, what must be freed: the answer for each recipe of a model on one machine, in figures and in
one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparseflow.config import EngineConfig
from sparseflow.container.recipes import DEFAULT_RECIPE
from sparseflow.errors import BudgetError
from sparseflow.host.memory import MemoryFacts
from sparseflow.planning.budget import Budget, floor_budget, resident_budget, settle_shape
from sparseflow.planning.machine import Machine
from sparseflow.planning.model_shape import ModelShape
from sparseflow.planning.predict import Prediction, predict, prepare_seconds
from sparseflow.units import format_bytes, format_seconds

LOW_BIT_QUANTS = (("Q3_K_S", 3.5), ("Q2_K", 3.0), ("IQ2_M", 2.45), ("IQ1_M", 1.9))
"""Bits a weight of published GGUF files of Qwen3.6-35B-A3B and its kin, falling."""
PREFERENCE = ("int8", DEFAULT_RECIPE, "int4-small")
"""Recipes that a plan chooses from, the most accurate first; bf16 is a reference."""


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """One recipe on one machine."""

    shape: ModelShape
    floor: Budget
    resident: Budget
    """The least with every expert in memory."""
    config: EngineConfig | None
    """Settled; None if it does not fit, and `refusal` says why."""
    budget: Budget | None
    prediction: Prediction | None
    refusal: str
    prepare_seconds: float | None
    """None for a container, which is prepared."""

    @property
    def recipe(self) -> str:
        return self.shape.recipe

    @property
    def fits(self) -> bool:
        return self.config is not None

    @property
    def is_resident(self) -> bool:
        return self.config is not None and self.config.store == "resident"

    def to_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "disk_bytes": self.shape.file_bytes,
            "floor": self.floor.to_dict(),
            "resident_bytes": self.resident.total_bytes,
            "fits": self.fits,
            "refusal": self.refusal,
            "store": None if self.config is None else self.config.store,
            "prefill_chunk": None if self.config is None else self.config.prefill_chunk,
            "budget": None if self.budget is None else self.budget.to_dict(),
            "prediction": None if self.prediction is None else asdict(self.prediction),
            "prepare_seconds": self.prepare_seconds,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All recipes, and what follows."""

    rows: tuple[RecipePlan, ...]
    chosen: RecipePlan
    verdict: str
    alternatives: tuple[str, ...]
    """What would avoid streaming."""
    notes: tuple[str, ...]
    """What to do first."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a machine."""

    machine: Machine
    config: EngineConfig
    threads: int
    prompt_tokens: int = 512
    source_bytes: int | None = None
    """Of the checkpoint; None for a container."""
    heat: Any = None
    """History of a container's earlier runs, [num_layers, num_experts, 2]; None: there is none."""


def make_plan(shapes: Sequence[ModelShape], question: Question) -> Plan:
    """REQUIRES: at least one shape, all of one model."""
    rows = tuple(_plan_recipe(shape, question) for shape in shapes)
    chosen = _choose(rows)
    notes = () if chosen.budget is None else shortage_notes(chosen.budget, question.machine)
    alternatives = _alternatives(rows, chosen, question)
    return Plan(rows, chosen, _verdict(chosen), tuple(alternatives), notes)


def shortage_notes(budget: Budget, where: Machine | MemoryFacts) -> tuple[str, ...]:
    """What must be freed before the sum of a `--ram` that was given is really there."""
    missing = budget.total_bytes - where.available_bytes
    if missing <= 0:
        return ()
    return (
        f"{format_bytes(missing)} more than is available now: close other programs, or give --ram"
        f" {where.available_bytes}; until then the expert cache stays smaller",
    )


def _plan_recipe(shape: ModelShape, question: Question) -> RecipePlan:
    machine, config = question.machine, question.config
    memory = MemoryFacts(machine.total_bytes, machine.available_bytes, machine.limit_bytes, 0)
    preparing = None
    if question.source_bytes is not None:
        preparing = prepare_seconds(shape, question.source_bytes, machine, question.threads)
    floor, resident = floor_budget(shape, config), resident_budget(shape, config)
    try:
        settled, budget = settle_shape(shape, config, memory)
    except BudgetError as error:
        return RecipePlan(shape, floor, resident, None, None, None, str(error), preparing)
    tokens = min(question.prompt_tokens, settled.ctx)
    found = predict(shape, settled, budget, machine, tokens, heat=question.heat)
    return RecipePlan(shape, floor, resident, settled, budget, found, "", preparing)


def _choose(rows: Sequence[RecipePlan]) -> RecipePlan:
    """The most accurate that streams nothing; else int4, if it fits, since it streams half of what int8 does."""
    by_name = {row.recipe: row for row in rows}
    if len(rows) == 1:
        return rows[0]
    for name in PREFERENCE:
        if name in by_name and by_name[name].is_resident:
            return by_name[name]
    for name in PREFERENCE[1:]:
        if name in by_name and by_name[name].fits:
            return by_name[name]
    return by_name.get(PREFERENCE[-1], rows[-1])


def _verdict(row: RecipePlan) -> str:
    if row.budget is None or row.config is None or row.prediction is None:
        return f"It does not run here: {row.recipe} {row.refusal}."
    found = row.prediction
    speed = (
        f"about {_count(found.decode_tokens_per_second)} tokens a second, the first after"
        f" {format_seconds(found.first_token_seconds)} for a prompt of {found.prompt_tokens}"
    )
    room = f"{format_bytes(row.budget.total_bytes)} of memory"
    if row.is_resident:
        return f"It runs: {row.recipe} in {room}, every expert in memory, {speed}."
    return (
        f"It runs: {row.recipe} in {room}, {found.kept_share:.0%} of the experts in memory and the rest"
        f" streamed, {speed}."
    )


def _count(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"


def _alternatives(rows: Sequence[RecipePlan], chosen: RecipePlan, question: Question) -> list[str]:
    """What would avoid streaming, if the choice streams or does not fit."""
    if chosen.is_resident:
        return []
    found = []
    ram = question.config.ram_bytes or question.machine.available_bytes
    if chosen.budget is not None:
        ram = chosen.budget.ram_bytes
    for row in rows:
        if row.is_resident:
            found.append(f"{row.recipe} would be resident here, and stream nothing")
    least = min(rows, key=lambda row: row.resident.total_bytes)
    missing = least.resident.total_bytes - ram
    if missing > 0:
        found.append(
            f"with --ram {format_bytes(least.resident.total_bytes)} ({format_bytes(missing)} more) {least.recipe}"
            " would stream nothing"
        )
    found += _fewer_bits(chosen.shape, ram)
    return found


def _fewer_bits(shape: ModelShape, ram_bytes: int) -> list[str]:
    """Honest advice: a file of fewer bits may fit as a whole, in another program."""
    weights = shape.num_experts * sum(rows * cols for rows, cols in shape.layout.shapes)
    for record in shape.tensors.values():
        weights += record.shape[0] * record.shape[1] if len(record.shape) == 2 else 0
    bits = 8 * 0.9 * ram_bytes / weights
    fitting = next((each for each in LOW_BIT_QUANTS if each[1] <= bits), None)
    if fitting is None:
        return []
    name, size = fitting
    return [
        f"a GGUF of about {size:g} bits a weight ({name}, {format_bytes(weights * size / 8)}) would fit as a whole into"
        " llama.cpp: faster, and further from the original than int4 (docs/quality.md)"
    ]


def speed_curve(shape: ModelShape, question: Question, points: int = 40) -> list[tuple[int, float]]:
    """(bytes of memory, decode tokens a second) from the floor to where every expert is in memory."""
    first = floor_budget(shape, question.config).total_bytes
    last = resident_budget(shape, question.config).total_bytes
    curve = []
    for number in range(points + 1):
        ram = first + (last - first) * number // points
        machine = replace(question.machine, total_bytes=ram, available_bytes=ram, limit_bytes=None)
        config = replace(question.config, ram_bytes=ram)
        row = _plan_recipe(shape, replace(question, machine=machine, config=config))
        if row.prediction is not None:
            curve.append((ram, row.prediction.decode_tokens_per_second))
    return curve
