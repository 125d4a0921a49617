from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from sparseflow.errors import ConfigError, ContainerError
from sparseflow.tokenizer.chat_template import ChatTemplate, find_chat_template
from sparseflow.tokenizer.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "golden" / "tiny"
USER = [{"role": "user", "content": "Hello <&> 'you'"}]


def make(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, "chat_template.jinja")


def test_the_golden_template_renders_a_conversation() -> None:
    template = find_chat_template(TINY, Tokenizer.open(TINY))
    assert template is not None
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(messages) == expected + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == expected


def test_a_template_in_the_settings_is_found(tmp_path: Path) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    settings = {
        "chat_template": [
            {"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"},
        ]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    template = find_chat_template(tmp_path, Tokenizer.open(tmp_path))
    assert template is not None
    assert template.render([]) == "d"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    assert find_chat_template(tmp_path, Tokenizer.open(tmp_path)) is None


def test_blocks_are_trimmed_as_publishers_expect() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\nend"
    assert make(source).render(USER) == "user\nend"


def test_loop_controls_and_generation_blocks_are_known() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}"
        "{% generation %}{{ i }}{% endgeneration %}{% endfor %}"
    )
    assert make(source).render(USER) == "01"


def test_tojson_escapes_no_html() -> None:
    assert make("{{ messages[0].content | tojson }}").render(USER) == "\"Hello <&> 'you'\""
    assert make("{{ 'é' | tojson }}").render(USER) == '"é"'
    assert make("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}").render(USER) == json.dumps(
        {"b": 1, "a": [2]}, indent=2
    )


def test_special_tokens_and_variables_are_visible() -> None:
    template = make("{{ bos_token }}{{ enable_thinking }}{{ tools is none }}")
    assert template.render(USER, enable_thinking=False) == "<s>FalseTrue"


def test_strftime_now_uses_the_given_time() -> None:
    template = make("{{ strftime_now('%d %B %Y') }}")
    assert template.render(USER, now=datetime(2026, 2, 3)) == "03 February 2026"


def test_raise_exception_is_the_callers_error() -> None:
    with pytest.raises(ConfigError, match="roles must alternate"):
        make("{{ raise_exception('roles must alternate') }}").render(USER)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ a", "{% endfor %}", "{{ 'x' | nosuchfilter }}", "{% nosuchtag %}"]
)
def test_a_damaged_template_is_a_container_error(source: str) -> None:
    with pytest.raises(
        ContainerError, match=r"chat_template\.jinja, line 1: not a Jinja template"
    ) as caught:
        make(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.items() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ strftime_now.__code__.co_code }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises((ContainerError, ConfigError)) as caught:
        make(source).render(USER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["{{ nosuch.field }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ messages[0].content.x.y }}"],
)
def test_what_fails_inside_a_template_is_one_line(source: str) -> None:
    with pytest.raises(ConfigError, match="cannot render") as caught:
        make(source).render(USER)
    assert "\n" not in str(caught.value)


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": ["a"]}]
    with pytest.raises(ContainerError, match="unsafe template"):
        make("{{ messages[0].content.append('b') }}").render(messages)
    assert messages == [{"role": "user", "content": ["a"]}]
