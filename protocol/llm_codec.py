"""Requests to models that generate text, and their responses, as tensors and back.

Source: Triton's vLLM backend, except for `input_ids` and, in the log probabilities, `bytes` and
`top_index`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from .dtypes import BYTES, NUMPY_DTYPES
from .errors import ErrorCode, RequestError, invalid_argument
from .json_text import dump_json, parse_object
from .llm_tensors import (
    CUMULATIVE_LOGPROB,
    EXCLUDE_INPUT,
    FINISH_REASON,
    INPUT_IDS,
    LOGPROBS,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    RETURN_CUMULATIVE_LOGPROB,
    RETURN_FINISH_REASON,
    RETURN_LOGPROBS,
    RETURN_NUM_INPUT_TOKENS,
    RETURN_NUM_OUTPUT_TOKENS,
    SAMPLING_PARAMETERS,
    STREAM,
    TEXT_INPUT,
    TEXT_OUTPUT,
    UNFINISHED,
    LlmChoice,
    LlmRequest,
    LlmToken,
    TokenLogprobs,
    text_tensor,
)
from .requests import InferRequest
from .sampling_request import SAMPLING_NAMES, client_json
from .tensors import Tensor
from .wording import names_text, quoted, shape_text

SAMPLING_BYTES_MAX: Final = 1 << 20
"""Bytes of the sampling parameters; more than all of them have together at their largest, however
they are escaped. They are read on the event loop."""

_RETURNS: Final = (
    (RETURN_FINISH_REASON, "finish_reason"),
    (RETURN_CUMULATIVE_LOGPROB, "cumulative_logprob"),
    (RETURN_LOGPROBS, "logprobs"),
    (RETURN_NUM_INPUT_TOKENS, "num_input_tokens"),
    (RETURN_NUM_OUTPUT_TOKENS, "num_output_tokens"),
)
"""(input that asks for it, attribute of `LlmRequest`)."""


def read_llm_request(request: InferRequest) -> LlmRequest:
    """Return what a request for text asks for; its sampling parameters are not checked yet.

    Request parameters with the name of a sampling parameter are one, as the generate calls make
    them; where the input `sampling_parameters` has it too, that counts. Other parameters are not
    looked at.

    Raises:
      RequestError: INVALID_ARG; no prompt or two, an input of the wrong form, or a stream that is
        to begin with its prompt.
    """
    inputs = request.inputs
    if (TEXT_INPUT in inputs) is (INPUT_IDS in inputs):
        came = "both" if TEXT_INPUT in inputs else "neither"
        raise invalid_argument(
            f"expected the prompt as one of the inputs '{TEXT_INPUT}' and '{INPUT_IDS}', got {came}"
        )
    stream = _flag(inputs, STREAM, default=False)
    exclude_input = _flag(inputs, EXCLUDE_INPUT, default=stream)
    if stream and not exclude_input:
        raise invalid_argument(
            f"with '{STREAM}' true the text goes without the prompt, so '{EXCLUDE_INPUT}' must be "
            "true or absent, got false"
        )
    sampling = {name: value for name, value in request.parameters.items() if name in SAMPLING_NAMES}
    if SAMPLING_PARAMETERS in inputs:
        document = _bytes(inputs[SAMPLING_PARAMETERS])
        if len(document) > SAMPLING_BYTES_MAX:
            raise invalid_argument(
                f"input '{SAMPLING_PARAMETERS}' may have {SAMPLING_BYTES_MAX} bytes, got "
                f"{len(document)}"
            )
        sampling |= parse_object(document, f"input '{SAMPLING_PARAMETERS}'")
    return LlmRequest(
        text=_text(inputs[TEXT_INPUT]) if TEXT_INPUT in inputs else "",
        tokens=_tokens(inputs[INPUT_IDS]) if INPUT_IDS in inputs else None,
        stream=stream,
        sampling=sampling,
        exclude_input=exclude_input,
        **{attribute: _flag(inputs, name, default=False) for name, attribute in _RETURNS},
    )


def prompt_characters_min(request: InferRequest) -> int:
    """Return how many characters the text of a prompt has at least; it is not read for that.

    A character of UTF-8 has up to four bytes. Token ids have no text.

    Raises:
      RequestError: INVALID_ARG; the input is no text, or several.
    """
    if TEXT_INPUT not in request.inputs:
        return 0
    element = _element(request.inputs[TEXT_INPUT], BYTES)
    return -(-len(element) // 4) if type(element) is bytes else len(str(element))


def llm_request_inputs(request: LlmRequest) -> dict[str, Tensor]:
    """Return the inputs that ask for the same, by name.

    Raises:
      RequestError: INVALID_ARG; the sampling parameters are nested too deep.
    """
    inputs = [_boolean_tensor(STREAM, request.stream)]
    inputs.append(_boolean_tensor(EXCLUDE_INPUT, request.exclude_input))
    if request.tokens is None:
        inputs.append(text_tensor(TEXT_INPUT, [request.text]))
    else:
        inputs.append(_array_tensor(INPUT_IDS, "INT64", request.tokens))
    if request.sampling:
        document = client_json(dict(request.sampling), "the sampling parameters")
        inputs.append(text_tensor(SAMPLING_PARAMETERS, [document]))
    inputs += [
        _boolean_tensor(name, True) for name, attribute in _RETURNS if getattr(request, attribute)
    ]
    return {tensor.name: tensor for tensor in inputs}


def llm_outputs(
    request: LlmRequest, choices: Sequence[LlmChoice], num_input_tokens: int
) -> list[Tensor]:
    """Return the outputs of one response: the texts, and what else was asked for.

    Args:
      request: What asks.
      choices: What there is of each text of the request.
      num_input_tokens: Tokens of the prompt.
    """
    outputs = [text_tensor(TEXT_OUTPUT, [choice.text for choice in choices])]
    if request.finish_reason:
        reasons = [choice.finish_reason or UNFINISHED for choice in choices]
        outputs.append(text_tensor(FINISH_REASON, reasons))
    if request.cumulative_logprob:
        sums = [choice.cumulative_logprob for choice in choices]
        outputs.append(_array_tensor(CUMULATIVE_LOGPROB, "FP32", sums))
    if request.logprobs:
        documents = [_logprobs_json(choice.logprobs) for choice in choices]
        outputs.append(text_tensor(LOGPROBS, documents))
    if request.num_input_tokens:
        outputs.append(_array_tensor(NUM_INPUT_TOKENS, "UINT32", [num_input_tokens]))
    if request.num_output_tokens:
        counts = [choice.output_tokens for choice in choices]
        outputs.append(_array_tensor(NUM_OUTPUT_TOKENS, "UINT32", counts))
    return outputs


def read_llm_outputs(outputs: Iterable[Tensor]) -> tuple[list[LlmChoice], int | None]:
    """Return what a response says of each text, and the tokens of the prompt if it says so.

    What the response does not say is as `LlmChoice` has it by default.

    Raises:
      RequestError: INTERNAL; the model answered something else.
    """
    by_name = {tensor.name: tensor for tensor in outputs}
    try:
        texts = _elements(by_name[TEXT_OUTPUT])
        columns = {
            name: _elements(by_name[name]) if name in by_name else [None] * len(texts)
            for name in (FINISH_REASON, CUMULATIVE_LOGPROB, LOGPROBS, NUM_OUTPUT_TOKENS)
        }
        choices = [
            LlmChoice(
                text=text.decode("utf-8", "replace"),
                finish_reason=None if reason in (None, UNFINISHED.encode()) else reason.decode(),
                output_tokens=count or 0,
                cumulative_logprob=total or 0.0,
                logprobs=None if logprobs is None else _read_logprobs(logprobs),
            )
            for text, reason, total, logprobs, count in zip(texts, *columns.values(), strict=True)
        ]
        prompt = _elements(by_name[NUM_INPUT_TOKENS])[0] if NUM_INPUT_TOKENS in by_name else None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise RequestError(
            ErrorCode.INTERNAL,
            f"expected '{TEXT_OUTPUT}' and what belongs to each text among the outputs of a model "
            f"that generates text, got other contents in {names_text(by_name)}",
        ) from None
    return choices, prompt


def _flag(inputs: Mapping[str, Tensor], name: str, *, default: bool) -> bool:
    return bool(_element(inputs[name], "BOOL")) if name in inputs else default


def _text(tensor: Tensor) -> str:
    try:
        return _bytes(tensor).decode()
    except UnicodeDecodeError as fault:
        raise invalid_argument(
            f"input '{tensor.name}' must be UTF-8, got another byte at {fault.start} of "
            f"{len(fault.object)}"
        ) from None


def _bytes(tensor: Tensor) -> bytes:
    element = _element(tensor, BYTES)
    return element if type(element) is bytes else str(element).encode("utf-8", "replace")


def _tokens(tensor: Tensor) -> tuple[int, ...]:
    _check_datatype(tensor, "INT64")
    tokens = tuple(tensor.array.ravel().tolist())
    if not tokens:
        raise invalid_argument(f"input '{INPUT_IDS}' must have at least one token, got none")
    if min(tokens) < 0:
        raise invalid_argument(f"input '{INPUT_IDS}' must have tokens >= 0, got {min(tokens)}")
    return tokens


def _element(tensor: Tensor, datatype: str) -> Any:
    _check_datatype(tensor, datatype)
    elements = tensor.array.ravel()
    if len(elements) != 1:
        raise invalid_argument(
            f"input '{tensor.name}' must have one element, got shape {shape_text(tensor.shape)}"
        )
    return elements[0]


def _check_datatype(tensor: Tensor, datatype: str) -> None:
    if tensor.datatype != datatype:
        raise invalid_argument(
            f"input '{tensor.name}' must be {datatype}, got {quoted(tensor.datatype)}"
        )


def _boolean_tensor(name: str, value: bool) -> Tensor:
    return _array_tensor(name, "BOOL", [value])


def _array_tensor(name: str, datatype: str, values: Sequence[float]) -> Tensor:
    return Tensor(name, datatype, (len(values),), array=np.array(values, NUMPY_DTYPES[datatype]))


def _elements(tensor: Tensor) -> list[Any]:
    elements: list[Any] = tensor.array.ravel().tolist()
    return elements


def _logprobs_json(logprobs: Sequence[TokenLogprobs] | None) -> str:
    """Return a list with one object a token: token id -> what is known of that token.

    The token of the text comes first; `top_index` is its place among the most likely ones, if it
    is one of them. `bytes` is there for a token that is no text by itself.
    """
    if logprobs is None:
        return "null"
    places = []
    for place in logprobs:
        chosen = _token_json(place.chosen)
        entries = {str(place.chosen.id): chosen}
        for index, token in enumerate(place.top):
            if token.id == place.chosen.id:
                chosen["top_index"] = index
            else:
                entries[str(token.id)] = _token_json(token)
        places.append(entries)
    return dump_json(places).decode()


def _token_json(token: LlmToken) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "logprob": token.logprob,
        "rank": token.rank,
        "decoded_token": token.text,
    }
    if token.utf8 != token.text.encode("utf-8", "replace"):
        entry["bytes"] = list(token.utf8)
    return entry


def _read_logprobs(document: bytes) -> list[TokenLogprobs] | None:
    if document == b"null":
        return None
    # The standard library's, which takes infinities; a model's answer needs no message.
    places = json.loads(document)
    result = []
    for entries in places:
        tokens = [_read_token(int(key), entry) for key, entry in entries.items()]
        chosen, *top = tokens
        index = entries[str(chosen.id)].get("top_index")
        if index is not None:
            top.insert(index, chosen)
        result.append(TokenLogprobs(chosen, tuple(top)))
    return result


def _read_token(token: int, entry: Mapping[str, Any]) -> LlmToken:
    text = entry["decoded_token"]
    utf8 = bytes(entry["bytes"]) if "bytes" in entry else text.encode()
    return LlmToken(token, text, float(entry["logprob"]), int(entry["rank"]), utf8)
