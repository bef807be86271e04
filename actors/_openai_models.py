"""What each model can do for OpenAI's API, and what is said of those that cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..protocol.llm_tensors import TEXT_INPUT, TEXT_OUTPUT
from ..protocol.model_spec import ModelSpec
from ..protocol.openai.errors import MODEL_NOT_FOUND, OpenAiError
from ..protocol.wording import names_text, quoted
from .routing_table import ModelVersion

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"

OWNER: Final = "tritrio"
"""Who owns all models, as far as OpenAI's API is concerned."""


def endpoints(version: ModelVersion) -> list[str]:
    """Return the paths of the calls that a model can answer; none if it is not served here."""
    found = []
    if _generates_text(version.spec):
        if version.text is not None and version.text.can_chat:
            found.append(CHAT)
        found.append(COMPLETIONS)
    if version.openai.embedding is not None:
        found.append(EMBEDDINGS)
    return found


def _generates_text(spec: ModelSpec) -> bool:
    text_in, text_out = spec.inputs.get(TEXT_INPUT), spec.outputs.get(TEXT_OUTPUT)
    if spec.max_batch_size or text_in is None or text_out is None:
        return False
    return text_in.datatype == text_out.datatype == "BYTES"  # else one that classifies, say


def described(version: ModelVersion, created: int) -> dict[str, Any]:
    """Return the object of a model.

    `supported_endpoints` is ours, `max_model_len` is vLLM's; OpenAI's clients keep both.

    Args:
      version: It can answer calls.
      created: Unix time, in seconds.
    """
    document: dict[str, Any] = {
        "id": version.name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "supported_endpoints": endpoints(version),
    }
    tokens_max = version.tokens_max
    if tokens_max is None and version.openai.embedding is not None:
        tokens_max = version.openai.embedding.tokens_max
    if tokens_max is not None:
        document["max_model_len"] = tokens_max
    return document


def why_not(version: ModelVersion, endpoint: str) -> str:
    """Return why a model cannot answer a call, or ""."""
    able = endpoints(version)
    if endpoint in able:
        return ""
    name = quoted(version.name)
    if endpoint == CHAT and version.text is not None:
        return (
            f"expected a model that has a chat template, got {name}, which has none: "
            "chat_template.jinja, or chat_template in tokenizer_config.json, in its version "
            "directory would be one"
        )
    if endpoint == CHAT and COMPLETIONS in able:
        return (
            f"expected a model that has a chat template, got {name}, which has none: only models "
            "of the backend 'llm' do"
        )
    what = "makes embeddings" if endpoint == EMBEDDINGS else "generates text"
    return f"expected a model that {what}, got {name}, which does not"


def choice(versions: Iterable[ModelVersion], endpoint: str) -> str:
    """Return the end of a message that names the models for a call."""
    names = dict.fromkeys(each.name for each in versions if endpoint in endpoints(each))
    return f"; models for {endpoint} are {names_text(names)}" if names else ""


def not_found(message: str) -> OpenAiError:
    """Return the error for a model that does not exist, or cannot do what is asked for."""
    return OpenAiError(404, message, param="model", code=MODEL_NOT_FOUND)
