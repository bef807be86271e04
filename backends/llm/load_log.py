"""What the log says of a model that generates text once it is loaded."""

from __future__ import annotations

import logging
from typing import Final

from ...memory.system_usage import read_system_usage
from .steps import EngineLimits
from .text import Text

_LOGGER: Final = logging.getLogger("tritrio.model")
_YES: Final = {True: "yes", False: "no"}


def log_loaded(name: str, limits: EngineLimits, text: Text, threads: int | None) -> None:
    """Say what was decided, and warn of what is hardly meant so.

    Args:
      name: The instance.
      limits: What the model can do.
      text: Its tokenizer.
      threads: Of ONNX Runtime; None for a model that has its own.
    """
    _LOGGER.info("model instance '%s' generates text; %s", name, summary(limits, text, threads))
    if not limits.end_tokens:
        _LOGGER.warning(
            "model instance '%s' knows no end token, so that its texts go on to max_tokens or the "
            "end of their row; eos_token_id in model.json names one",
            name,
        )
    if limits.vocabulary_size < text.vocabulary_size:
        _LOGGER.warning(
            "model instance '%s' knows %d tokens, and its tokenizer %d; prompts with others are "
            "refused",
            name,
            limits.vocabulary_size,
            text.vocabulary_size,
        )
    try:
        memory_bytes = read_system_usage().memory_total_bytes
    except (OSError, ValueError):  # not Linux: nobody says
        return
    if limits.kv_budget_bytes > memory_bytes:
        _LOGGER.warning(
            "model instance '%s' may take %d bytes for keys and values, more than the %d bytes of "
            "memory that the machine has; kv_cache_memory_bytes bounds them",
            name,
            limits.kv_budget_bytes,
            memory_bytes,
        )


def summary(limits: EngineLimits, text: Text, threads: int | None) -> str:
    """Return the settings that count, in one line."""
    facts = {
        "rows": limits.rows,
        "tokens of a row": limits.tokens_per_row,
        "bytes of KV memory": limits.kv_budget_bytes,
        "tokens of KV memory": limits.capacity_tokens,
        "tokens of a step": limits.step_tokens,
        "end tokens": " ".join(map(str, sorted(limits.end_tokens))) or "none",
        "chat template": _YES[text.can_chat],
        "prefix caching": _YES[limits.prefix_caching],
        "threads": "its own" if threads is None else threads,
    }
    return ", ".join(f"{fact}: {value}" for fact, value in facts.items())
