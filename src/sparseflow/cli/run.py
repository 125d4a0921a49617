"""`run`: one prompt, one answer. Text is streamed to stdout, everything else goes to stderr."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from sparseflow.cli.console import progress_bars, say, write_json
from sparseflow.cli.options import JsonOption, ModelsDirOption, QuietOption, with_engine_options
from sparseflow.cli.stopwatch import Stopwatch
from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.errors import ConfigError

DEMO_PROMPT = "Once upon a time"
INTERRUPTED_EXIT_CODE = 130


@with_engine_options
def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="A container, a name, demo or demo:RECIPE, or ORG/NAME on a hub. Default: demo.",
        ),
    ] = "demo",
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The text; - reads it from stdin.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text; no chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    thinking: Annotated[
        str,
        typer.Option(
            metavar="on|off|hide", help="Reasoning before the answer, if the model does that."
        ),
    ] = "on",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="End after N tokens. Default: 256 if there is no chat template."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy. Sampling defaults: the model's generation_config.json."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the K likeliest; 0: off.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest that sum to P.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Least share of the likeliest token's.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: repeat less.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Above 0: repeat less.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text. Default: 0.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before TEXT; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of text.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="A model on a hub: download without asking.")
    ] = False,
    models_dir: ModelsDirOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
    *,
    engine: EngineConfig,
) -> int:
    """Answer a prompt, or continue a text if the model has no chat template."""
    watch = Stopwatch()
    given = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
        "ignore_eos": ignore_eos or None,
    }
    sampling = {name: value for name, value in given.items() if value is not None}
    SamplingParams(**sampling)  # type: ignore[arg-type]  # refused here, before anything is loaded
    if thinking not in ("on", "off", "hide"):
        raise ConfigError(f"--thinking: unknown {thinking!r}; known: on, off, hide")

    from sparseflow.cli.answer import Answer, Question
    from sparseflow.cli.hub_model import find_or_prepare

    is_printing = json != "-"
    path = find_or_prepare(model, models_dir, engine, is_agreed=yes, quiet=quiet)
    watch.lap("resolve_seconds")
    text = _read_prompt(model, prompt)
    watch.lap("prompt_seconds")
    question = Question(text, system=system, is_raw=raw, thinking=thinking, sampling=sampling)
    with progress_bars(quiet=quiet) as progress:
        answer = Answer(question, watch, progress, is_hashing=json is not None)
        answer.open(path, engine)
        is_interrupted = answer.write(sys.stdout if is_printing else None, is_echoing=not quiet)
    if not quiet:
        say(answer.statistics_line())
        for warning in answer.warnings:
            say(f"note: {warning}")
    if json is not None:
        write_json(answer.report(), json)
    return INTERRUPTED_EXIT_CODE if is_interrupted else 0


def _read_prompt(model: str, prompt: str | None) -> str:
    """The prompt: as given, from stdin for `-` or a pipe, asked for at a terminal; the demo begins by itself."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if prompt == "-" or (prompt is None and not is_terminal):
        prompt = (sys.stdin.read() if sys.stdin is not None else "") or None
    if prompt is None:
        if model.partition(":")[0] == "demo":
            return DEMO_PROMPT
        if not is_terminal:
            return _no_prompt()
        print("prompt: ", end="", file=sys.stderr, flush=True)
        prompt = sys.stdin.readline().rstrip("\n")
    return prompt or _no_prompt()


def _no_prompt() -> NoReturn:
    raise ConfigError("the prompt is empty; write it after the model's name, or pipe it in")
