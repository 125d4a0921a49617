"""SparseFlow: Mixture-of-Experts models bigger than memory, on an ordinary CPU, bit for bit
exactly.

    import sparseflow

    with sparseflow.load("demo") as engine:
        params = sparseflow.SamplingParams(max_new_tokens=40)
        for token in engine.generate("Once upon a time", params):
            print(token.text, end="", flush=True)

`load`, `Engine`, `SamplingParams` and the errors in `sparseflow.errors` are public.
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparseflow.config import SamplingParams as SamplingParams
    from sparseflow.engine.engine import Engine as Engine

__all__ = ["Engine", "SamplingParams", "__version__", "load"]


def load(model: str, **options: Any) -> Engine:
    """Opens a model by path or name; `demo` is prepared on first use.

    Options are the fields of EngineConfig; `heat_dir` lies in the user's cache directory unless it is
    given. Raises ConfigError for an unknown model or option, BudgetError if the model does not fit
    into memory.
    """
    import platformdirs

    from sparseflow.config import EngineConfig
    from sparseflow.engine.engine import Engine
    from sparseflow.errors import ConfigError
    from sparseflow.planning.budget import settle
    from sparseflow.prepare.models import resolve_model

    cache_dir = platformdirs.user_cache_path("sparseflow")
    try:
        config = EngineConfig(**{"heat_dir": cache_dir / "heat", **options})
    except TypeError as error:
        raise ConfigError(f"load: {' '.join(str(error).split())}") from None
    models_dir = platformdirs.user_data_path("sparseflow") / "models"
    container = resolve_model(model, models_dir, cache_dir)
    config, _ = settle(container, config)
    return Engine.open(container, config)


def __getattr__(name: str) -> Any:
    # Lazy, so that `import sparseflow` costs milliseconds.
    if name == "SamplingParams":
        from sparseflow.config import SamplingParams

        return SamplingParams
    if name == "Engine":
        from sparseflow.engine.engine import Engine

        return Engine
    if name == "__version__":
        return _version("sparseflow")
    raise AttributeError(f"module 'sparseflow' has no attribute {name!r}")
