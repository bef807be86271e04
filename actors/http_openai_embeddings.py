"""OpenAI's API for models that make embeddings."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, final

import numpy as np
import trio

from ..backends.openai_settings import EmbeddingModel
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.generate_codec import check_coding
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.openai.completion_request import EmbeddingRequest, parse_embedding
from ..protocol.openai.embeddings import batches, embeddings_document, token_tensors
from ..protocol.openai.errors import TOO_LONG, OpenAiError
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Array
from ..protocol.wording import quoted, shape_text
from ._openai_models import EMBEDDINGS
from ._openai_replies import Replies
from .http_api import HttpMethod
from .http_openai import INLINE_BYTES_MAX, OpenAiContext, as_request_error, failed
from .inference import count_refusal
from .routing_table import ModelVersion

INLINE_NUMBERS_MAX: Final = 32_768
"""Numbers of an answer that are written on the event loop: it takes less than a millisecond."""
TOKENS_ALL_MAX: Final = 300_000
"""Tokens of all inputs of a request, as for OpenAI's API."""


@final
class OpenAiEmbeddings:
    """Answers the call for embeddings.

    Args:
      context: What all calls need.
    """

    def __init__(self, context: OpenAiContext) -> None:
        self._context = context

    def mapping(self) -> Mapping[RouteName, HttpMethod]:
        """Return the call; see `HttpApi.extend`."""
        return {RouteName.OPENAI_EMBEDDINGS: self._embed}

    def _embed(self, request: HttpRequest, _: Route) -> Awaitable[HttpResponse]:
        return self._answer(request)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        arrived_s = trio.current_time()
        context = self._context
        inline = len(request.body) <= INLINE_BYTES_MAX
        try:
            check_coding(request.headers.get(b"content-encoding", b""))
            asked = await context.run(parse_embedding, request.body, inline=inline)
            version = context.find(asked.model, EMBEDDINGS)
            context.check(version, EMBEDDINGS)
            model = version.openai.embedding
            assert model is not None
            try:
                tokens = await context.run(_tokens, asked, model, inline=inline)
            except OpenAiError as error:
                count_refusal(version, as_request_error(error), arrived_s)
                raise
            # It may have been replaced meanwhile, and take no more requests.
            version = context.find(asked.model, EMBEDDINGS)
            parts = batches(tokens, version.spec.max_batch_size)
            infers = [_infer_request(version, model, [tokens[i] for i in part]) for part in parts]
            replies = context.submit_all(request, version, infers, arrived_s)
            try:
                embeddings = await _embeddings(replies, parts, model)
            finally:
                replies.close()
        except (OpenAiError, RequestError) as error:
            return failed(error)
        inline = len(embeddings) * model.dimensions <= INLINE_NUMBERS_MAX
        body = await context.run(_document, asked, embeddings, tokens, inline=inline)
        return HttpResponse(200, [JSON_CONTENT_TYPE], body)


def _tokens(asked: EmbeddingRequest, model: EmbeddingModel) -> list[list[int]]:
    """Return the tokens of each input.

    Raises:
      OpenAiError: an input is too long or has unknown tokens, or another size is asked for.
    """
    if asked.dimensions not in (None, model.dimensions):
        raise OpenAiError(
            400,
            f"model {quoted(asked.model)} makes embeddings of {model.dimensions} dimensions, got "
            f"'dimensions' {asked.dimensions}",
            param="dimensions",
        )
    texts = model.encode([each for each in asked.inputs if isinstance(each, str)])
    encoded = iter(texts)
    tokens = [next(encoded) if isinstance(each, str) else list(each) for each in asked.inputs]
    for index, each in enumerate(tokens):
        if not 1 <= len(each) <= model.tokens_max:
            raise OpenAiError(
                400,
                f"model {quoted(asked.model)} takes inputs of 1 to {model.tokens_max} tokens, got "
                f"{len(each)} in 'input[{index}]'",
                param="input",
                code=TOO_LONG,
            )
        if max(each) >= model.vocabulary_size:
            raise OpenAiError(
                400,
                f"model {quoted(asked.model)} has tokens below {model.vocabulary_size}, got "
                f"{max(each)} in 'input[{index}]'",
                param="input",
            )
    total = sum(map(len, tokens))
    if total > TOKENS_ALL_MAX:
        raise OpenAiError(
            400,
            f"all inputs may have {TOKENS_ALL_MAX} tokens together, got {total}",
            param="input",
            code=TOO_LONG,
        )
    return tokens


def _infer_request(
    version: ModelVersion, model: EmbeddingModel, rows: list[list[int]]
) -> InferRequest:
    infer = InferRequest(version.name)
    infer.inputs = token_tensors(rows, model.inputs, model.padding)
    return infer


async def _embeddings(
    replies: Replies, parts: list[list[int]], model: EmbeddingModel
) -> list[Array]:
    """Return the embedding of each input.

    Raises:
      RequestError: a request failed, or the model answered something else.
    """
    found: dict[int, Array] = {}
    while (taken := await replies.next()) is not None:
        part, response = taken
        if response.error is not None:
            raise response.error
        if not response.empty:
            found |= zip(parts[part], _rows(response, len(parts[part]), model), strict=True)
    if len(found) != sum(map(len, parts)):
        raise RequestError(ErrorCode.INTERNAL, "a model that makes embeddings gave no answer")
    return [found[index] for index in range(len(found))]


def _rows(response: InferResponse, rows: int, model: EmbeddingModel) -> Array:
    expected = (rows, model.dimensions)
    for tensor in response.outputs:
        if tensor.name == model.output and tensor.shape == expected and tensor.datatype == "FP32":
            return np.ascontiguousarray(tensor.array)
    raise RequestError(
        ErrorCode.INTERNAL,
        f"expected '{model.output}' FP32 {shape_text(expected)} of model "
        f"'{response.model_name}', got {response.outputs}",
    )


def _document(asked: EmbeddingRequest, embeddings: list[Array], tokens: list[list[int]]) -> bytes:
    return embeddings_document(
        asked.model, embeddings, base64=asked.base64, tokens=sum(map(len, tokens))
    )
