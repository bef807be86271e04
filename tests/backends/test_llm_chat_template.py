"""Chat templates make prompts as Hugging Face's `apply_chat_template` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tritrio.backends.llm import chat_template
from tritrio.backends.llm.chat_template import ChatTemplate
from tritrio.protocol.errors import ErrorCode, RequestError

USER = [{"role": "user", "content": "Hi"}]


def render(
    source: str,
    messages: Sequence[Mapping[str, Any]] = USER,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    template = ChatTemplate(
        source,
        name="chat_template.jinja",
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        now=lambda: datetime(2026, 3, 9, tzinfo=UTC),
    )
    return template.render(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        variables=variables,
    )


def refusal(source: str, messages: Any = USER, **variables: Any) -> str:
    with pytest.raises(RequestError) as caught:
        render(source, messages, **variables)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def test_a_conversation_becomes_a_prompt() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML, messages, add_generation_prompt=False) == prompt
    assert render(CHATML, messages) == prompt + "<|im_start|>assistant\n"


def test_blocks_leave_no_white_space_around_them() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}"
    assert render(source) == "user\n"


def test_templates_may_use_special_tokens_and_the_variables_of_the_request() -> None:
    source = "{{ bos_token }}{{ thinking }}{{ unknown }}{{ eos_token }}"
    assert render(source, thinking=True) == "<s>True</s>"
    assert render(source, eos_token="<end>") == "<s><end>"


def test_tools_are_written_as_json_with_characters_as_they_are() -> None:
    tools = [{"type": "function", "function": {"name": "wetter", "description": "für <b>"}}]
    assert render("{{ tools | tojson }}", tools=tools) == json.dumps(tools, ensure_ascii=False)
    assert render("{{ tools[0].function | tojson(indent=1) }}", tools=tools) == (
        '{\n "name": "wetter",\n "description": "für <b>"\n}'
    )


def test_loops_can_be_left_and_the_date_be_written() -> None:
    source = "{% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    assert render(source + "{{ strftime_now('%d %b %Y') }}") == "0109 Mar 2026"


def test_the_tag_for_training_writes_what_is_in_it() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}.{% endfor %}"
    assert render(source) == "user."


def test_a_template_says_why_it_refuses_messages() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    assert refusal(source) == (
        "the model's chat template does not take these messages: 'roles must alternate'"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].missing.more }}",
        "{{ 1 // 0 }}",
        "{{ range(1000000) | length }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_refuses_the_messages(source: str) -> None:
    assert refusal(source).startswith("the model's chat template does not take these messages: ")


def test_a_variable_hides_nothing_of_the_request() -> None:
    template = ChatTemplate(CHATML, name="t", special_tokens={})
    with pytest.raises(RequestError, match="other than 'messages', which the request itself sets"):
        template.render(USER, tools=None, add_generation_prompt=True, variables={"messages": []})


def test_a_prompt_has_a_greatest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "PROMPT_MAX_CHARACTERS", 5)
    source = "{% for n in range(count) %}{{ n }}{% endfor %}"
    assert render(source, count=5) == "01234"
    assert refusal(source, count=6) == (
        "expected a prompt of at most 5 characters, got more from the chat template"
    )


def test_a_wrong_template_is_not_loaded() -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate("a\n{% for %}", name="chat_template.jinja", special_tokens={})
    assert caught.value.message.startswith(
        "chat_template.jinja: line 2 of the chat template is wrong: "
    )
