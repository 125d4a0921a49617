"""From a container's directory to the parts of an engine, in the order that fails cheapest first."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.container.reader import Container
from sparseflow.engine.generation_config import (
    read_generation_config,
    read_sampling_defaults,
    read_stop_ids,
)
from sparseflow.engine.watcher import PressureWatcher
from sparseflow.experts.create import create_store
from sparseflow.experts.heat import HeatFile, open_heat_file
from sparseflow.experts.store import ExpertStore
from sparseflow.experts.streaming import StreamingStore
from sparseflow.host.cpu import default_threads
from sparseflow.layers.weights import Progress
from sparseflow.models.base import Model, ModelParts
from sparseflow.models.registry import create_model, memory_needs
from sparseflow.native import _ext
from sparseflow.state.kv_cache import KVFormat
from sparseflow.tokenizer.chat_template import ChatTemplate, find_chat_template
from sparseflow.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """The parts of one engine; the engine owns them."""

    config: EngineConfig
    """Effective: threads, ctx and store are what is used."""
    runtime: _ext.Runtime
    store: ExpertStore
    model: Model
    state_bytes: int
    """Of one sequence at full context."""
    model_type: str
    recipe: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    stop_ids: frozenset[int]
    generation_defaults: SamplingParams
    heat: HeatFile | None
    """Saved when all is closed."""
    watcher: PressureWatcher | None
    opened: ExitStack
    """Saves the heat, ends the watch, closes the store and the container."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong beside the work."""
        return tuple(w for part in (self.heat, self.watcher) if part for w in part.warnings)


def load(
    directory: Path,
    config: EngineConfig,
    progress: Progress | None = None,
    read_engine: _ext.ReadEngine | None = None,
) -> Loaded:
    """Opens the container in `directory` and loads everything; on an error nothing stays open.

    read_engine: what reads the experts, with its own queue depth and kind of I/O; None: what the config says.
    """
    config = replace(config, threads=config.threads or default_threads())
    with ExitStack() as opened:
        container = opened.enter_context(Container.open(directory))
        tokenizer = Tokenizer.open(directory)
        chat_template = find_chat_template(directory, tokenizer)
        generation_config = read_generation_config(directory)
        manifest = container.manifest
        runtime = _ext.Runtime(config.isa, config.threads or 1)
        store = create_store(
            runtime,
            container.expert_files,
            config,
            container.config["num_experts_per_tok"],
            engine=read_engine,
            progress=progress,
        )
        opened.enter_context(store)
        kv_format: KVFormat = "float32" if manifest.recipe == "bf16" else "float16"
        parts = ModelParts(container, runtime, store, kv_format, progress, config.lookahead)
        model = create_model(manifest.model_type, parts)
        watcher = None
        if isinstance(store, StreamingStore) and config.watch_pressure:
            watcher = PressureWatcher(store)
            opened.callback(watcher.close)
        # Last, so that the reads in the background do not slow down those of the dense weights.
        heat = open_heat_file(config.heat_dir, directory, config.policy, store)
        if heat is not None:
            heat.preload()
            opened.callback(heat.save)
        ctx = min(config.ctx, model.max_position)
        needs = memory_needs(manifest.model_type, container.config)
        return Loaded(
            config=replace(config, ctx=ctx, store=store.kind),
            runtime=runtime,
            store=store,
            model=model,
            state_bytes=needs.state_bytes(ctx, 4 if kv_format == "float32" else 2),
            model_type=manifest.model_type,
            recipe=manifest.recipe,
            tokenizer=tokenizer,
            chat_template=chat_template,
            stop_ids=read_stop_ids(generation_config, container.config),
            generation_defaults=read_sampling_defaults(generation_config),
            heat=heat,
            watcher=watcher,
            opened=opened.pop_all(),
        )
