"""What the planner knows of one sequence, and when it is complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...memory.kv_slots import TokenChain
from ...protocol.sampling_params import FinishReason
from .steps import EngineLimits, SequenceStart, TokenChoice, TokenEvent


@dataclass(slots=True)
class SequenceFacts:
    """What became of one sequence so far, for statistics.

    Attributes:
      admitted_s: When it first got a row, in the planner's time; None before.
      cached_tokens: Tokens of its prompt that were not computed when it first got a row.
    """

    admitted_s: float | None = None
    cached_tokens: int = 0


@final
class Sequence:
    """One sequence between being added and its end.

    Args:
      start: What is to be generated.
      arrival: How many were added before it.
      tokens_max: Most tokens that it can have, prompt and text together.
      limits: What the model can do.

    Attributes:
      id: Its number.
      rank: Lower ones go first: by priority, then by arrival.
      start: As given.
      chain: Its tokens, prompt and text.
      computed: Tokens whose state is in its row; without meaning while it waits.
      row: Its row; None while it waits.
      paused: Whether it takes no part in steps.
      joined: Whether the sampler has met it.
      turn: Lower ones read their prompt first.
      held_back: Steps for which it waited for another one to read what both begin with.
      facts: For statistics.
    """

    __slots__ = (
        "_end_tokens",
        "_stop_tokens",
        "_tokens_max",
        "chain",
        "computed",
        "facts",
        "held_back",
        "id",
        "joined",
        "paused",
        "rank",
        "row",
        "start",
        "turn",
    )

    def __init__(
        self, start: SequenceStart, *, arrival: int, tokens_max: int, limits: EngineLimits
    ) -> None:
        params = start.params
        self.id = start.id
        self.rank = (start.priority, arrival)
        self.start = start
        self.chain = TokenChain(start.prompt)
        self.computed = 0
        self.row: int | None = None
        self.paused = False
        self.joined = False
        self.turn = 0
        self.held_back = 0
        self.facts = SequenceFacts()
        self._end_tokens = limits.end_tokens
        self._stop_tokens = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self._stop_tokens |= limits.end_tokens
        self._tokens_max = tokens_max
        if params.max_tokens is not None:
            self._tokens_max = min(tokens_max, len(start.prompt) + params.max_tokens)

    def __repr__(self) -> str:
        place = "waits" if self.row is None else f"in row {self.row}, {self.computed} computed"
        return f"<Sequence {self.id} of {len(self.chain.tokens)} tokens: {place}>"

    @property
    def runs(self) -> bool:
        """Whether it takes part in steps."""
        return self.row is not None and not self.paused

    @property
    def uncomputed(self) -> int:
        """Tokens whose state is missing; at least one, whose logits give the next token."""
        return len(self.chain.tokens) - self.computed

    @property
    def decodes(self) -> bool:
        """Whether it goes on token by token: all but its last, generated one are computed."""
        return self.uncomputed == 1 and len(self.chain.tokens) > len(self.start.prompt)

    def choose(self, choice: TokenChoice) -> TokenEvent:
        """Take its next token and return what that means."""
        self.chain.append(choice.token)
        stops = choice.token in self._stop_tokens
        if choice.ends_guide and choice.token in self._end_tokens:
            stops = True  # also when end tokens are ignored: it says that the guide is complete
        finish = None
        if stops or choice.ends_guide:
            finish = FinishReason.STOP
        elif len(self.chain.tokens) >= self._tokens_max:
            finish = FinishReason.LENGTH
        return TokenEvent(self.id, choice, finish, stops)
