"""What the executor needs of a model: an ONNX graph or a Python class behind one face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ...memory.kv_slots import KV_BLOCK_TOKENS, blocks_of
from ...protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ...protocol.tensors import Array
from .settings import LlmSettings
from .steps import Decode, Prefill, RowCopy, RowSwap

KV_DEFAULT_BYTES_MAX: Final = 1 << 30
"""Most bytes of state of a model whose settings bound neither these nor its sequences: what a small
machine can spare."""


class CausalModel(Protocol):
    """A loaded model; every call comes from the instance's thread.

    Attributes:
      vocabulary_size: Columns of the logits.
      tokens_per_row: Most tokens of a sequence.
      kv_bytes_per_token: Bytes of state of one token of one sequence; 0 if it is not known.
      contiguous: Whether rows that go on together have to lie together.
      can_copy: Whether `copy` works.
      prefill_tokens_min: Fewest tokens of a part of a prompt; see `EngineLimits`.
    """

    vocabulary_size: int
    tokens_per_row: int
    kv_bytes_per_token: int
    contiguous: bool
    can_copy: bool
    prefill_tokens_min: int

    def swap(self, swap: RowSwap) -> None:
        """Let two rows change places; called of contiguous models only."""

    def copy(self, copy: RowCopy) -> None:
        """Put the beginning of one row into another one."""

    def decode(self, decodes: Sequence[Decode], idle_rows: Mapping[int, int]) -> Array:
        """Add one token to some rows; see `StepPlan`.

        Returns:
          float32 [decodes, vocabulary_size], the logits behind each; valid until the next call.
        """

    def prefill(self, prefill: Prefill) -> Array:
        """Add tokens to one row.

        Returns:
          float32 [1, vocabulary_size], the logits behind the last one; valid until the next call.
        """

    def close(self) -> None:
        """Let go of everything."""


def tokens_per_row(settings: LlmSettings, context: int | None, token_bytes: int) -> int:
    """Return how long a sequence may be, in tokens.

    What the settings say, else what the model can see, so far as there is room for the state: of
    one sequence within the budget, and of all rows within the default or a larger budget.

    Args:
      settings: Of the model.
      context: How many tokens the model can see; None if it does not say so.
      token_bytes: Bytes of state of one token; 0 if it takes none.

    Raises:
      RequestError: INVALID_ARG; the settings ask for more than the model can see or the budget has
        room for, or nobody says.
    """
    wanted = settings.max_model_len
    if wanted is None and context is None:
        raise invalid_argument(
            "expected max_model_len in the settings, since the model does not say how many tokens "
            "it can see"
        )
    if wanted is not None and context is not None and wanted > context:
        raise invalid_argument(
            f"expected max_model_len to be at most the {context} tokens that the model can "
            f"see, got {wanted}"
        )
    _check_budget(settings, token_bytes)
    if wanted is not None:
        return wanted
    assert context is not None, "checked above"
    if not token_bytes:
        return context
    block_bytes = token_bytes * KV_BLOCK_TOKENS
    budget_bytes = settings.kv_cache_memory_bytes or KV_DEFAULT_BYTES_MAX
    tokens = max(budget_bytes, KV_DEFAULT_BYTES_MAX) // (token_bytes * settings.max_num_seqs)
    if tokens > KV_BLOCK_TOKENS:
        tokens -= tokens % KV_BLOCK_TOKENS  # a part of a block is charged as a whole one
    if settings.kv_cache_memory_bytes is not None:
        tokens = min(tokens, budget_bytes // block_bytes * KV_BLOCK_TOKENS)
    return max(2, min(context, tokens))


def _check_budget(settings: LlmSettings, token_bytes: int) -> None:
    """Refuse a budget that has no room for one sequence of the length that is asked for."""
    budget_bytes, tokens = settings.kv_cache_memory_bytes, settings.max_model_len
    if budget_bytes is None:
        return
    least_bytes = blocks_of(tokens or 1) * KV_BLOCK_TOKENS * token_bytes
    if budget_bytes < least_bytes:
        length = f" of max_model_len {tokens} tokens" if tokens else ""
        raise invalid_argument(
            f"expected kv_cache_memory_bytes to be {least_bytes} at least, room for one sequence"
            f"{length}, with {token_bytes} bytes a token and blocks of {KV_BLOCK_TOKENS} tokens, "
            f"got {budget_bytes}"
        )


def model_fault(message: str) -> RequestError:
    """Return the error for something that a model did wrong while it ran."""
    return RequestError(ErrorCode.INTERNAL, message, reason=FailureReason.BACKEND)
