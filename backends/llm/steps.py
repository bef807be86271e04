"""What the planner, the executor and the sampler tell each other.

A step is one turn of the engine: some sequences go on by one token each, and parts of prompts are
read. The planner decides it on the event loop, the executor does it on the thread of its instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ...protocol.sampling_params import FinishReason, SamplingParams
from ...protocol.tensors import Array
from .text import Text


class CompiledGuide(Protocol):
    """A guide, ready to make one state for each text; callable from any thread."""

    def start(self) -> GuideState:
        """Return the state at the beginning of a text."""


class GuideFaultError(Exception):
    """A text cannot go on in what it is held to; the message says why."""


class GuideState(Protocol):
    """How far one text has come in what it is held to; used on one thread."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but an end token."""

    def allowed_mask(self) -> Array:
        """Return which tokens may come next: bool, shape [tokens]; end tokens if it may end.

        Raises:
          GuideFaultError: it takes too long to say.
        """

    def advance(self, token: int) -> None:
        """Go on by the token that came.

        Raises:
          GuideFaultError: the token was not allowed.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceStart:
    """One text to be generated.

    Attributes:
      id: Unique within the engine.
      prompt: Token ids; at least one.
      params: How its tokens are chosen; `n` has no meaning here.
      seed: What its random numbers derive from.
      priority: Lower ones go first.
      guide: What it is held to, compiled; None for nothing.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    priority: int = 0
    guide: CompiledGuide | None = None


@dataclass(frozen=True, slots=True)
class RowCopy:
    """The state of the first `tokens` tokens in row `source` is put into row `target` too."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RowSwap:
    """Two rows change places, of which so many tokens count."""

    first: int
    second: int
    first_tokens: int
    second_tokens: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """A part of a prompt is read into a row.

    Attributes:
      sequence_id: Whose.
      row: Where its state is.
      tokens: The part; at least one token.
      past: Tokens before it, whose state lies in the row already; that of more may, which is
        written anew.
      samples: Whether the next token is chosen after it: this is the last part.
    """

    sequence_id: int
    row: int
    tokens: tuple[int, ...]
    past: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Decode:
    """A sequence goes on by one token.

    Attributes:
      sequence_id: Whose.
      row: Where its state is.
      token: The last token, whose state is to be added.
      past: Tokens whose state lies in the row already.
    """

    sequence_id: int
    row: int
    token: int
    past: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step, in the order in which its parts are done.

    Attributes:
      joins: Sequences that the sampler has not met yet.
      leaves: Ids of sequences that the sampler may forget.
      swaps: Done first, in order.
      copies: Done next, in order.
      decodes: By ascending row; executed together.
      idle_rows: Row -> tokens in it that are to be kept, for each row below the highest one that
        decodes and which does not itself: what executes them together writes behind those.
      prefills: Executed one by one.
    """

    joins: tuple[SequenceStart, ...] = ()
    leaves: tuple[int, ...] = ()
    swaps: tuple[RowSwap, ...] = ()
    copies: tuple[RowCopy, ...] = ()
    decodes: tuple[Decode, ...] = ()
    idle_rows: Mapping[int, int] = field(default_factory=dict)
    prefills: tuple[Prefill, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One chosen token.

    Attributes:
      token: Its id.
      logprob: The logarithm of its probability before temperature and the cuts; None unless asked.
      rank: How many tokens were at least as likely, itself included; 0 unless asked.
      top: (id, logprob) of the most likely tokens, best first; empty unless asked.
      ends_guide: Whether what the text is held to is complete with it.
    """

    token: int
    logprob: float | None = None
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()
    ends_guide: bool = False


@dataclass(frozen=True, slots=True)
class SequenceFault:
    """Why a sequence cannot go on.

    Attributes:
      reason: The end of a sentence.
      of_request: Whether what was asked for is at fault, and not the model.
    """

    reason: str
    of_request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What became of a step.

    Attributes:
      choices: Sequence id -> the token chosen for it.
      faults: Sequence id -> why it cannot go on, while the others can.
      prefill_ns: Nanoseconds spent on parts of prompts.
      decode_ns: Nanoseconds spent on going on.
      sample_ns: Nanoseconds spent on choosing.
    """

    choices: Mapping[int, TokenChoice] = field(default_factory=dict)
    faults: Mapping[int, SequenceFault] = field(default_factory=dict)
    prefill_ns: int = 0
    decode_ns: int = 0
    sample_ns: int = 0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a step means for one sequence.

    Attributes:
      sequence_id: Whose.
      choice: Its new token; None if there is none.
      finish: Why it is complete with that; None if it goes on.
      stop_token: Whether `choice` is an end token, and no part of the text.
      fault: Why it failed; None if it did not.
    """

    sequence_id: int
    choice: TokenChoice | None
    finish: FinishReason | None = None
    stop_token: bool = False
    fault: SequenceFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What a loaded model can do, and what it may take.

    Attributes:
      rows: Sequences that can have state at a time.
      tokens_per_row: Most tokens of a sequence, prompt and text together.
      step_tokens: Most tokens of a step: one for each sequence that goes on, the rest for prompts.
      kv_bytes_per_token: Bytes of state of one token of one sequence; 0 if it takes none.
      kv_budget_bytes: Most bytes of state of all sequences together.
      end_tokens: Tokens with which the model ends a text.
      prefill_tokens_min: Fewest tokens of a part of a prompt, so far as there are as many: one that
        would have fewer begins with tokens that were read before. Kernels for fewer tokens may
        round otherwise, and no text is to depend on how its prompt was divided.
      prefix_caching: Whether the state of a prompt's beginning is taken from another sequence.
      contiguous: Whether idle rows between others cost time, so that rows are moved together.
      vocabulary_size: How many tokens there are.
    """

    rows: int
    tokens_per_row: int
    step_tokens: int
    kv_bytes_per_token: int
    kv_budget_bytes: int
    end_tokens: frozenset[int]
    prefix_caching: bool
    contiguous: bool
    vocabulary_size: int
    prefill_tokens_min: int = 1

    @property
    def capacity_tokens(self) -> int:
        """Most tokens that there can be state of, all sequences together."""
        tokens = self.rows * self.tokens_per_row
        if self.kv_bytes_per_token:
            tokens = min(tokens, self.kv_budget_bytes // self.kv_bytes_per_token)
        return tokens


@runtime_checkable
class GeneratesTokens(Protocol):
    """A model instance that generates text step by step, in place of executing batches.

    Attributes:
      generates_tokens: True.
      limits: Set by `load`.
      text: Set by `load`: what makes tokens of text and text of tokens; from any thread.
      sampling_defaults: Set by `load`: what counts where a request says nothing.
    """

    generates_tokens: bool
    limits: EngineLimits
    text: Text
    sampling_defaults: SamplingParams

    def step(self, plan: StepPlan) -> StepResult:
        """Do one step, on the instance's thread.

        Raises:
          DeviceFaultError: the device is broken.
          Exception: a fault of the model: every sequence of the step fails, and what state they
            had is lost.
        """
