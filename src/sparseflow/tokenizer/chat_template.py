"""Renders messages through a checkpoint's Jinja template in a sandbox, with the conventions of
Hugging Face templates.

A template comes from strangers: it reaches no attribute, file or module beyond the values that it
is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sparseflow.errors import ConfigError, ContainerError
from sparseflow.tokenizer.tokenizer import Tokenizer, read_tokenizer_settings

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template; immutable. `origin` names the file in error messages."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """Raises ContainerError with the line number if the template has a syntax error."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._origin = origin
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ContainerError(
                f"{origin}, line {error.lineno}: not a Jinja template ({_one_line(error.message)})"
            ) from error
        except (RecursionError, ValueError, OverflowError, TypeError) as error:
            raise ContainerError(f"{origin}: not a Jinja template ({_one_line(error)})") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. `now` is the time that strftime_now formats (None: this moment);
        `variables`, such as
        enable_thinking, are passed on. Raises ConfigError if the template refuses the messages,
        ContainerError if it leaves the sandbox.
        """
        clock = now or datetime.now()

        def strftime_now(pattern: str) -> str:
            return clock.strftime(pattern)

        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                documents=None,
                strftime_now=strftime_now,
                **self._special_tokens,
                **variables,
            )
        except jinja2.exceptions.SecurityError as error:
            raise ContainerError(f"{self._origin}: unsafe template ({_one_line(error)})") from error
        except _TemplateRefusalError as error:
            raise ConfigError(
                f"the chat template refuses these messages: {_one_line(error)}"
            ) from error
        except Exception as error:  # a template may fail in any way that Python can
            raise ConfigError(
                f"{self._origin}: cannot render these messages ({type(error).__name__}: {_one_line(error)})"
            ) from error


def find_chat_template(directory: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The container's template: chat_template.jinja, else the entry of tokenizer_config.json; None
    if there is none.
    """
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ContainerError(f"{path}: not UTF-8 ({_one_line(error)})") from error
        return ChatTemplate(source, tokenizer.special_tokens, str(path))
    entry = read_tokenizer_settings(directory).get("chat_template")
    if isinstance(entry, list):
        named = {t.get("name"): t.get("template") for t in entry if isinstance(t, dict)}
        entry = named.get("default")
    if not isinstance(entry, str):
        return None
    origin = f"{directory / 'tokenizer_config.json'}: chat_template"
    return ChatTemplate(entry, tokenizer.special_tokens, origin)


class _TemplateRefusalError(jinja2.TemplateError):
    """What raise_exception raises inside a template."""


class _GenerationExtension(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training; rendered
    as it stands.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationExtension],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which a prompt must not.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusalError(message)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
