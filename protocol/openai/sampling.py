"""What the requests for chats and for completions say alike: how tokens are chosen, and streaming.

Values are checked as sampling parameters, so that one rule holds whichever way a request comes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..errors import RequestError
from ..sampling_params import GuideKind
from ..sampling_request import parse_sampling_params
from .errors import OpenAiError, wrong
from .fields import Fields, as_fields

PASSED: Final = (
    "n",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
"""Members that are sampling parameters by the same name; those from top_k on are vLLM's."""

IGNORED: Final = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Members for the books of OpenAI, without effect on the answer."""

STRUCTURED: Final = "structured_outputs"
_SUBJECT = re.compile(r"\Asampling parameter '[^']*'")
_GUIDED: Final = {
    "guided_json": GuideKind.JSON_SCHEMA,
    "guided_regex": GuideKind.REGEX,
    "guided_choice": GuideKind.CHOICE,
    "guided_grammar": GuideKind.GRAMMAR,
}


def take_sampling(fields: Fields) -> dict[str, Any]:
    """Return the sampling parameters among the members, checked, as JSON values by name.

    Raises:
      OpenAiError: one of them is wrong, or there is more than one guide.
    """
    sampling: dict[str, Any] = {}
    for name in PASSED:
        value = fields.take(name)
        if value is not None:
            sampling[name] = checked(name, value)
    guides = [name for name in (*_GUIDED, STRUCTURED, "response_format") if fields.has(name)]
    if len(guides) > 1:
        raise OpenAiError(
            400, f"expected one of '{guides[0]}' and '{guides[1]}', got both", param=guides[1]
        )
    for name, kind in _GUIDED.items():
        value = fields.take(name)
        if value is not None:
            sampling |= guide(kind, value, name)
    value = fields.take(STRUCTURED)
    if value is not None:
        sampling[STRUCTURED] = checked(STRUCTURED, value)
    value = fields.take("response_format")
    if value is not None:
        sampling |= _response_format(value)
    return sampling


def checked(name: str, value: Any, *, param: str = "") -> Any:
    """Return a sampling parameter as it is.

    Raises:
      OpenAiError: its value is wrong.
    """
    if isinstance(value, str) and name != "stop":  # there, texts may stand for all values
        raise wrong(param or name, "no string", value)
    try:
        parse_sampling_params({"max_tokens": None, name: value})  # which min_tokens may not pass
    except RequestError as error:
        message = _SUBJECT.sub(f"'{param or name}'", error.message)
        raise OpenAiError(400, message, param=param or name) from None
    return value


def guide(kind: GuideKind, value: Any, param: str) -> dict[str, Any]:
    """Return the sampling parameter that holds a text to something."""
    return {STRUCTURED: checked(STRUCTURED, {kind.value: value}, param=param)}


def _response_format(value: object) -> dict[str, Any]:
    place = "response_format"
    fields = as_fields(value, place)
    kind = fields.one_of("type", "text", "json_object", "json_schema")
    if kind is None:
        raise fields.missing("type", "'text', 'json_object' or 'json_schema'")
    sampling: dict[str, Any] = {}
    if kind == "json_object":
        sampling = guide(GuideKind.JSON_OBJECT, True, place)
    elif kind == "json_schema":
        inner = as_fields(fields.take("json_schema"), f"{place}.json_schema")
        inner.required_text("name")
        inner.text("description")
        inner.flag("strict")
        schema = inner.mapping("schema")
        inner.end()
        if schema is None:
            sampling = guide(GuideKind.JSON_OBJECT, True, place)
        else:
            sampling = guide(GuideKind.JSON_SCHEMA, schema, inner.name("schema"))
    fields.end()
    return sampling


def take_streaming(fields: Fields) -> tuple[bool, bool]:
    """Return whether the answer is to be streamed, and whether usage is to end the stream."""
    stream = fields.flag("stream")
    options = fields.take("stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise OpenAiError(
            400,
            "'stream_options' goes with 'stream' true, got it without",
            param="stream_options",
        )
    inner = as_fields(options, "stream_options")
    include_usage = inner.flag("include_usage")
    inner.flag("include_obfuscation")  # padding against eavesdroppers, which nobody relies on
    inner.end()
    return stream, include_usage
