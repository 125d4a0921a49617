"""From a container's directory to the parts of an engine, in the order that fails cheapest
first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.generation_config import (
    read_generation_config,
    read_sampling_defaults,
    read_stop_ids,
)
from sparseflow.experts.create import create_store
from sparseflow.models.base import Model, ModelParts
from sparseflow.models.registry import create_model
from sparseflow.native import _ext
from sparseflow.state.kv_cache import KVFormat
from sparseflow.tokenizer.chat_template import ChatTemplate, find_chat_template
from sparseflow.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sparseflow.container.reader import Container
    from sparseflow.experts.store import ExpertStore
    from sparseflow.layers.weights import Progress

    StoreFactory = Callable[[Container, EngineConfig, _ext.Runtime, Progress | None], ExpertStore]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The parts of one engine; the engine owns them."""

    config: EngineConfig
    """Effective: threads, ctx and store are what is used."""
    runtime: _ext.Runtime
    store: ExpertStore
    model: Model
    model_type: str
    recipe: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    stop_ids: frozenset[int]
    generation_defaults: SamplingParams
    opened: ExitStack
    """Closes the store and the container."""


def load(
    directory: Path,
    config: EngineConfig,
    progress: Progress | None = None,
    open_store: StoreFactory | None = None,
) -> Loaded:
    """Opens the container in `directory` and loads everything; on an error nothing stays open.

    open_store: how the experts are opened, if not by the configuration; for tests with read
    engines of their own.
    """
    from sparseflow.container.reader import Container
    from sparseflow.host.cpu import default_threads

    config = replace(config, threads=config.threads or default_threads())
    with ExitStack() as opened:
        container = opened.enter_context(Container.open(directory))
        tokenizer = Tokenizer.open(directory)
        generation_config = read_generation_config(directory)
        chat_template = find_chat_template(directory, tokenizer)
        runtime = _ext.Runtime(config.isa, config.threads or 1)
        store = (open_store or open_experts)(container, config, runtime, progress)
        opened.callback(store.close)
        manifest = container.manifest
        kv_format: KVFormat = "float32" if manifest.recipe == "bf16" else "float16"
        model = create_model(
            manifest.model_type, ModelParts(container, runtime, store, kv_format, progress)
        )
        return Loaded(
            config=replace(config, ctx=min(config.ctx, model.max_position)),
            runtime=runtime,
            store=store,
            model=model,
            model_type=manifest.model_type,
            recipe=manifest.recipe,
            tokenizer=tokenizer,
            chat_template=chat_template,
            stop_ids=read_stop_ids(generation_config, container.config),
            generation_defaults=read_sampling_defaults(generation_config),
            opened=opened.pop_all(),
        )


def open_experts(
    container: Container,
    config: EngineConfig,
    runtime: _ext.Runtime,
    progress: Progress | None,
) -> ExpertStore:
    """The store that the configuration asks for; `auto` streams if `cache_bytes` is given and does
    not hold them all.
    """
    top_k: int = container.config["num_experts_per_tok"]
    return create_store(runtime, container.expert_files, config, top_k, progress=progress)
