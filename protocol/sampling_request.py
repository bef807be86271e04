"""Sampling parameters as clients give them: JSON values by name, checked one by one.

Source: names, defaults and ranges of vLLM's sampling parameters; the ranges of penalties and biases
of OpenAI's API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import Any, Final

from .errors import RequestError, invalid_argument
from .json_text import NESTING_MAX, dump_json, parse_json
from .sampling_params import Guide, GuideKind, SamplingParams
from .wording import quoted, shown

TEXTS_MAX: Final = 16
"""Texts of one request; each takes a place of its own in the batch."""
LOGPROBS_MAX: Final = 20
"""Alternatives a token; what OpenAI's API allows, and each is sent with every token."""
PENALTY_MAX: Final = 2.0
"""Largest presence and frequency penalty; more has no further effect worth having."""
LOGIT_BIAS_MAX: Final = 100.0
"""Largest bias; it forbids or forces a token."""
LOGIT_BIASES_MAX: Final = 1024
"""Biased tokens; each is added to at every step."""
STOP_TEXTS_MAX: Final = 16
"""Stop texts; each is looked for after every token."""
STOP_TEXT_CHARACTERS_MAX: Final = 1024
"""Characters of a stop text; as much of a text may have to be held back."""
STOP_TOKENS_MAX: Final = 128
"""Stop tokens of one request; each is compared with every token."""
GUIDE_CHARACTERS_MAX: Final = 65536
"""Characters of a schema, an expression, a grammar or all choices; each takes time to compile."""
REGEX_CHARACTERS_MAX: Final = 8192
"""Characters of a regular expression: unlike those of the other guides, all may be one word, and
each token takes the longer the longer that is."""
STRUCTURE_CHARACTERS_MAX: Final = 1 << 20
"""Characters of JSON in a string; more than the largest guide has, however it is escaped. Whoever
takes requests in reads it, and others wait meanwhile."""
CHOICES_MAX: Final = 1024
"""Texts to choose from; a list of more is data and not a choice."""

_DEFAULTS: Final = SamplingParams()
_INT64_END = 2**63
_NUMBER = re.compile(r"[+-]?(?:\d{1,32}\.?\d{0,32}|\.\d{1,32})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,32}", re.ASCII)
_TOKEN = re.compile(r"\d{1,19}", re.ASCII)
_GUIDES: Final = ("guided_decoding", "structured_outputs")
"""The two names that vLLM has had for it."""


def parse_sampling_params(
    document: Mapping[str, Any],
    *,
    vocabulary_size: int | None = None,
    defaults: SamplingParams = _DEFAULTS,
) -> SamplingParams:
    """Return the sampling parameters that JSON values stand for.

    A null is the default, but for `max_tokens`, where it is as many as fit. Where the values came
    as request parameters, which are scalars, a string may hold a number, a truth value or, for
    lists and objects, JSON.

    Args:
      document: Name -> JSON value.
      vocabulary_size: How many tokens there are; None leaves that to whoever knows.
      defaults: What counts where nothing is said.

    Raises:
      RequestError: INVALID_ARG; an unknown name, a value of the wrong kind or out of range, or
        values that exclude each other.
    """
    given: dict[str, Any] = {}
    for name, value in document.items():
        if name not in SAMPLING_NAMES:
            raise invalid_argument(
                f"{quoted(name)} is none of the sampling parameters, which are "
                f"{', '.join(sorted(SAMPLING_NAMES))}"
            )
        if value is None:
            if name == "max_tokens":
                given[name] = None
        elif name in _GUIDES:
            if "guide" in given:
                raise invalid_argument(
                    f"expected one of '{_GUIDES[0]}' and '{_GUIDES[1]}', which are the same, got "
                    "both"
                )
            given["guide"] = _guide(name, value)
        else:
            given[name] = _READERS[name](name, value)
    params = replace(defaults, **given)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise invalid_argument(
            f"sampling parameter 'min_tokens' must be at most 'max_tokens', which is "
            f"{params.max_tokens}, got {params.min_tokens}"
        )
    if vocabulary_size is not None:
        for token in (*params.logit_bias, *params.stop_token_ids):
            if token >= vocabulary_size:
                name = "logit_bias" if token in params.logit_bias else "stop_token_ids"
                raise invalid_argument(
                    f"sampling parameter '{name}' may name tokens below {vocabulary_size}, the "
                    f"size of the vocabulary, got {token}"
                )
    return params


def client_json(value: object, what: str) -> str:
    """Return JSON of values that a client gave.

    Args:
      value: Values of a JSON document.
      what: What they are, for messages.

    Raises:
      RequestError: INVALID_ARG; they are nested too deep.
    """
    try:
        return dump_json(value).decode()
    except RecursionError:
        raise invalid_argument(
            f"{what} may have arrays and objects nested {NESTING_MAX} deep, got more"
        ) from None


def _fault(name: str, expected: str, value: object) -> RequestError:
    return invalid_argument(f"sampling parameter '{name}' must be {expected}, got {shown(value)}")


def _number(name: str, value: object, expected: str) -> float:
    if type(value) is str and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fault(name, expected, value)
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise _fault(name, expected, value)
    return number


def _numbers(
    expected: str, least: float = -inf, most: float = inf, *, above: float = -inf
) -> Callable[[str, object], float]:
    def read(name: str, value: object) -> float:
        number = _number(name, value, expected)
        if not (least <= number <= most and number > above):
            raise _fault(name, expected, value)
        return number

    return read


def _integers(
    expected: str, least: int, most: int = _INT64_END - 1
) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and _INTEGER.fullmatch(value):
            number = int(value)
        else:
            exact = _number(name, value, expected)
            if not exact.is_integer():
                raise _fault(name, expected, value)
            number = int(exact)
        if not least <= number <= most:
            raise _fault(name, expected, value)
        return number

    return read


def _boolean(name: str, value: object) -> bool:
    if type(value) is str and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if type(value) is not bool:
        raise _fault(name, "a boolean", value)
    return value


def _top_k(name: str, value: object) -> int:
    return max(0, _integers("an integer >= 1, or 0 or -1 for all tokens", -1)(name, value))


def _stop(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if type(value) is str else value
    if type(texts) is not list or not all(type(text) is str and text for text in texts):
        raise _fault(name, "a text or an array of texts, none of them empty", value)
    if len(texts) > STOP_TEXTS_MAX:
        raise _fault(name, f"at most {STOP_TEXTS_MAX} texts", texts)
    longest = max(map(len, texts), default=0)
    if longest > STOP_TEXT_CHARACTERS_MAX:
        raise invalid_argument(
            f"sampling parameter '{name}' may have texts of {STOP_TEXT_CHARACTERS_MAX} "
            f"characters, got one of {longest}"
        )
    return tuple(texts)


def _structure(name: str, value: object) -> Any:
    """Return a list or an object, also one that came as JSON in a string."""
    if type(value) is not str:
        return value
    if len(value) > STRUCTURE_CHARACTERS_MAX:
        raise invalid_argument(
            f"sampling parameter '{name}' may have {STRUCTURE_CHARACTERS_MAX} characters of JSON, "
            f"got {len(value)}"
        )
    return parse_json(value.encode("utf-8", "replace"), f"sampling parameter '{name}'")


def _stop_token_ids(name: str, value: object) -> tuple[int, ...]:
    tokens = _structure(name, value)
    if type(tokens) is not list or not all(
        type(token) is int and 0 <= token < _INT64_END for token in tokens
    ):
        raise _fault(name, "an array of integers >= 0", tokens)
    if len(tokens) > STOP_TOKENS_MAX:
        raise _fault(name, f"at most {STOP_TOKENS_MAX} tokens", tokens)
    return tuple(dict.fromkeys(tokens))


def _logit_bias(name: str, value: object) -> dict[int, float]:
    biases = _structure(name, value)
    if not isinstance(biases, Mapping):
        raise _fault(name, "an object of token ids and numbers", biases)
    if len(biases) > LOGIT_BIASES_MAX:
        raise invalid_argument(
            f"sampling parameter '{name}' may have {LOGIT_BIASES_MAX} tokens, got {len(biases)}"
        )
    read = _numbers(
        f"numbers from -{LOGIT_BIAS_MAX:g} to {LOGIT_BIAS_MAX:g}", -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX
    )
    result: dict[int, float] = {}
    for token, bias in biases.items():
        if not _TOKEN.fullmatch(str(token)):
            raise _fault(name, "an object whose names are token ids", str(token))
        if int(token) in result:
            raise invalid_argument(f"sampling parameter '{name}' has token {int(token)} twice")
        result[int(token)] = read(name, bias)
    return result


def _guide(name: str, value: object) -> Guide | None:
    document = _structure(name, value)
    kinds = {kind.value: kind for kind in GuideKind}
    expected = f"an object with one of the members {', '.join(sorted(kinds))}"
    if type(document) is not dict:
        raise _fault(name, expected, document)
    members = {key: member for key, member in document.items() if member is not None}
    for key in members:
        if key not in kinds:
            raise _fault(name, expected, key)
    json_object = GuideKind.JSON_OBJECT.value
    if json_object in members and not _boolean(f"{name}.{json_object}", members[json_object]):
        del members[json_object]
    if not members:
        return None
    if len(members) > 1:
        raise invalid_argument(
            f"sampling parameter '{name}' must be {expected}, got {' and '.join(members)}"
        )
    ((key, member),) = members.items()
    guide = Guide(kinds[key], _guide_source(f"{name}.{key}", kinds[key], member))
    regex = guide.kind is GuideKind.REGEX
    characters_max = REGEX_CHARACTERS_MAX if regex else GUIDE_CHARACTERS_MAX
    if len(guide.source) > characters_max:
        raise invalid_argument(
            f"sampling parameter '{name}.{key}' may have {characters_max} characters, got "
            f"{len(guide.source)}"
        )
    return guide


def _guide_source(name: str, kind: GuideKind, value: object) -> str:
    if kind is GuideKind.JSON_OBJECT:
        return ""
    if kind is GuideKind.JSON_SCHEMA:
        schema = _structure(name, value)
        if type(schema) is not dict:
            raise _fault(name, "a JSON schema, which is an object", schema)
        return client_json(schema, f"sampling parameter '{name}'")
    if kind is GuideKind.CHOICE:
        choices = _structure(name, value)
        if type(choices) is not list or not all(type(text) is str and text for text in choices):
            raise _fault(name, "an array of texts, none of them empty", choices)
        if not 1 <= len(choices) <= CHOICES_MAX:
            raise _fault(name, f"an array of 1 to {CHOICES_MAX} texts", choices)
        return client_json(choices, f"sampling parameter '{name}'")
    if type(value) is not str or not value:
        raise _fault(name, "a text that is not empty", value)
    return value


_READERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "n": _integers(f"an integer from 1 to {TEXTS_MAX}", 1, TEXTS_MAX),
    "temperature": _numbers("a number >= 0", 0),
    "top_k": _top_k,
    "top_p": _numbers("a number above 0 and at most 1", most=1, above=0),
    "min_p": _numbers("a number from 0 to 1", 0, 1),
    "repetition_penalty": _numbers("a number above 0", above=0),
    "presence_penalty": _numbers(
        f"a number from -{PENALTY_MAX:g} to {PENALTY_MAX:g}", -PENALTY_MAX, PENALTY_MAX
    ),
    "frequency_penalty": _numbers(
        f"a number from -{PENALTY_MAX:g} to {PENALTY_MAX:g}", -PENALTY_MAX, PENALTY_MAX
    ),
    "seed": _integers("an int64", -_INT64_END),
    "logit_bias": _logit_bias,
    "logprobs": _integers(f"an integer from 0 to {LOGPROBS_MAX}", 0, LOGPROBS_MAX),
    "stop": _stop,
    "stop_token_ids": _stop_token_ids,
    "include_stop_str_in_output": _boolean,
    "ignore_eos": _boolean,
    "max_tokens": _integers("an integer >= 1", 1),
    "min_tokens": _integers("an integer >= 0", 0),
    "skip_special_tokens": _boolean,
}

SAMPLING_NAMES: Final = frozenset({*_READERS, *_GUIDES})
"""The names of all sampling parameters."""
