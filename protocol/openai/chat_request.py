"""Requests for chat completions.

Source: OpenAI's API reference, chat completions; `add_generation_prompt` and
`chat_template_kwargs` are vLLM's.
"""

from __future__ import annotations

import re
from typing import Any

from ..json_text import parse_object
from ..sampling_params import GuideKind
from ..tensors import Buffer
from ..wording import quoted
from .errors import OpenAiError, wrong
from .fields import Fields, as_fields
from .generation import Chat, GenerationRequest, ToolUse
from .messages import CALLS_MAX, take_messages
from .sampling import IGNORED, STRUCTURED, checked, guide, take_sampling, take_streaming

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def parse_chat(body: Buffer) -> GenerationRequest:
    """Return what the body of a request for a chat completion asks for.

    Raises:
      OpenAiError: a member is wrong, or none that is supported.
      RequestError: INVALID_ARG; it is no JSON object.
    """
    fields = Fields(parse_object(bytes(body), "the request"))
    model = fields.required_text("model")
    messages = take_messages(fields)
    sampling = take_sampling(fields)
    sampling["max_tokens"] = _max_tokens(fields)
    logprobs = _logprobs(fields)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    tools = _tools(fields)
    tool_use, tool_name = _tool_choice(fields, tools)
    parallel = fields.flag("parallel_tool_calls", default=True)
    held_to = _held_to(tools, tool_use, tool_name, parallel=parallel)
    if held_to:
        if STRUCTURED in sampling:
            raise OpenAiError(
                400,
                "'tool_choice' that asks for a call and another form of the answer exclude each "
                "other, got both",
                param="tool_choice",
            )
        sampling |= held_to
    stream, include_usage = take_streaming(fields)
    chat = Chat(
        messages=messages,
        tools=None if tool_use is ToolUse.NONE else tools,
        add_generation_prompt=fields.flag("add_generation_prompt", default=True),
        variables=_variables(fields),
        tool_use=tool_use,
        tool_name=tool_name,
        parallel_tool_calls=parallel,
    )
    modalities = fields.take("modalities")
    if modalities not in (None, ["text"]):
        raise wrong("modalities", '["text"]', modalities)
    fields.ignore(*IGNORED)
    fields.end()
    return GenerationRequest(
        model=model,
        sampling=sampling,
        n=int(sampling.get("n", 1)),
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs is not None,
        chat=chat,
    )


def _max_tokens(fields: Fields) -> int | None:
    """Return how many tokens may be generated; None, if nothing is said, for all there is room for.

    The older of the two names counts if it is alone.
    """
    old, new = fields.take("max_tokens"), fields.take("max_completion_tokens")
    if new is not None:
        old = checked("max_tokens", new, param="max_completion_tokens")
    return None if old is None else int(checked("max_tokens", old))


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs")
    top = fields.take("top_logprobs")
    if top is not None and not wanted:
        raise OpenAiError(
            400, "'top_logprobs' goes with 'logprobs' true, got it without", param="top_logprobs"
        )
    if not wanted:
        return None
    return 0 if top is None else int(checked("logprobs", top, param="top_logprobs"))


def _tools(fields: Fields) -> list[dict[str, Any]] | None:
    tools = fields.array("tools", CALLS_MAX)
    for index, tool in enumerate(tools or ()):
        outer = as_fields(tool, f"tools[{index}]")
        if outer.one_of("type", "function") is None:
            raise outer.missing("type", "'function'")
        inner = as_fields(outer.take("function"), outer.name("function"))
        name = inner.required_text("name")
        if not _TOOL_NAME.fullmatch(name):
            raise wrong(inner.name("name"), "1 to 64 letters, digits, '_' and '-'", name)
        inner.text("description")
        inner.mapping("parameters")
        inner.flag("strict")
        inner.end()
        outer.end()
    return tools or None


def _tool_choice(fields: Fields, tools: list[dict[str, Any]] | None) -> tuple[ToolUse, str]:
    """Return how tools are to be used, and which one if that is said."""
    param = "tool_choice"
    choice = fields.take(param)
    if tools is None:
        if choice not in (None, "none", "auto"):
            raise OpenAiError(400, f"'{param}' goes with 'tools', got it without", param=param)
        return ToolUse.NONE, ""
    if choice is None:
        return ToolUse.AUTO, ""
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise wrong(param, "'none', 'auto', 'required' or the name of a function", choice)
        return ToolUse(choice), ""
    outer = as_fields(choice, param)
    outer.one_of("type", "function")
    inner = as_fields(outer.take("function"), outer.name("function"))
    name = inner.required_text("name")
    inner.end()
    outer.end()
    if name not in (tool["function"]["name"] for tool in tools):
        raise OpenAiError(
            400, f"'{param}' names {quoted(name)}, which is none of the tools", param=param
        )
    return ToolUse.NAMED, name


def _held_to(
    tools: list[dict[str, Any]] | None, use: ToolUse, name: str, *, parallel: bool
) -> dict[str, Any]:
    """Return the sampling parameter that makes the answer a call; empty if it need not be one."""
    functions = {tool["function"]["name"]: tool["function"] for tool in tools or ()}
    if use is ToolUse.NAMED:
        return guide(GuideKind.JSON_SCHEMA, _arguments(functions[name]), "tools")
    if use is not ToolUse.REQUIRED:
        return {}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": _moved(
                    _arguments(function), f"#/items/anyOf/{index}/properties/arguments"
                ),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, (name, function) in enumerate(functions.items())
    ]
    schema: dict[str, Any] = {
        "type": "array",
        "items": {"anyOf": calls},
        "minItems": 1,
        "maxItems": CALLS_MAX if parallel else 1,
    }
    return guide(GuideKind.JSON_SCHEMA, schema, "tools")


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object"}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema for a place in another, since references are from the root."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, place) for name, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def _variables(fields: Fields) -> dict[str, Any]:
    variables = fields.mapping("chat_template_kwargs") or {}
    effort = fields.text("reasoning_effort")
    return variables if effort is None else {"reasoning_effort": effort, **variables}
