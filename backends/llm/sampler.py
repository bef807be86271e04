"""Chooses the next token of each sequence from the logits of a step.

Source: vLLM's order of operations: biases, what the text is held to, tokens that may not come yet,
penalties, temperature, min-p, top-k, top-p. What cuts see is what the cuts before them left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from math import isfinite, log, nextafter
from typing import Final

import numpy as np

from ...protocol.sampling_params import SamplingParams
from ...protocol.tensors import Array
from .steps import GuideFaultError, GuideState, SequenceFault, SequenceStart, TokenChoice

TEMPERATURE_MIN: Final = 1e-5
"""Below, the most likely token is taken: nothing else has a probability worth mentioning."""
EXTREME: Final = 1e30
"""Temperatures and penalties above it, or below its inverse, are as this one: so no logit that they
divide or multiply becomes something that is no number."""
_LOGIT_MAX: Final = np.finfo(np.float32).max
_SEED_MASK: Final = 2**128 - 1


class Sampler:
    """Knows of each sequence what its next token depends on; used on one thread.

    Args:
      vocabulary_size: Tokens that may be chosen: those below.
      end_tokens: Tokens with which the model ends a text.
    """

    def __init__(self, vocabulary_size: int, end_tokens: Iterable[int]) -> None:
        self._vocabulary_size = vocabulary_size
        self._end_tokens = frozenset(end_tokens)
        self._sequences: dict[int, _Sequence] = {}

    def join(self, start: SequenceStart) -> None:
        """Take a sequence on, at the beginning of its text."""
        assert start.id not in self._sequences
        self._sequences[start.id] = _Sequence(start, self._vocabulary_size, self._end_tokens)

    def leave(self, sequence_id: int) -> None:
        """Forget a sequence, if it is known."""
        self._sequences.pop(sequence_id, None)

    def sample(
        self, logits: Array, ids: Sequence[int]
    ) -> tuple[list[TokenChoice | None], dict[int, SequenceFault]]:
        """Choose a token for each row; what is chosen does not depend on other rows.

        Args:
          logits: float32, shape [rows, tokens], tokens at least the size of the vocabulary;
            unchanged.
          ids: The sequence of each row; joined before.

        Returns:
          The choices, None for a sequence that cannot go on; and sequence id -> why it cannot.
        """
        choices: list[TokenChoice | None] = []
        faults: dict[int, SequenceFault] = {}
        for row, sequence_id in zip(logits, ids, strict=True):
            try:
                with np.errstate(over="ignore"):  # what is too low for a float is impossible
                    choice = self._sequences[sequence_id].choose(row[: self._vocabulary_size])
            except (GuideFaultError, _NoTokenError, _LogitsError) as fault:
                choices.append(None)
                of_request = not isinstance(fault, _LogitsError)
                faults[sequence_id] = SequenceFault(str(fault), of_request=of_request)
            else:
                choices.append(choice)
        return choices, faults


@contextmanager
def _guiding() -> Iterator[None]:
    """Have whatever a guide raises end its text alone, panics of a library in Rust included."""
    try:
        yield
    except (GuideFaultError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        name = type(error).__name__
        raise GuideFaultError(
            f"what the text is held to cannot be followed: {name}: {error}"
        ) from error


class _NoTokenError(Exception):
    """What was asked for leaves nothing to choose from."""


class _LogitsError(Exception):
    """The logits are no numbers to choose by."""


class _Sequence:
    """One text: its parameters, and what of its tokens matters for the next."""

    def __init__(
        self, start: SequenceStart, vocabulary_size: int, end_tokens: frozenset[int]
    ) -> None:
        params = start.params
        self._params = params
        self._seed = (start.seed & _SEED_MASK).to_bytes(16, "little")
        self._length = 0
        biases = {t: bias for t, bias in params.logit_bias.items() if 0 <= t < vocabulary_size}
        self._biased = np.array(list(biases), np.intp)
        self._biases = np.array(list(biases.values()), np.float32)
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else end_tokens)
        self._ends = np.array([t for t in sorted(ends) if 0 <= t < vocabulary_size], np.intp)
        self._held_to = start.guide
        self._guide: GuideState | None = None
        self._penalties = _Penalties.of(params, start.prompt, vocabulary_size)

    def choose(self, row: Array) -> TokenChoice:
        """Return the next token, and count it as part of the text.

        Args:
          row: Logits of the vocabulary.

        Raises:
          GuideFaultError: what the text is held to cannot be followed.
          _NoTokenError: what was asked for leaves nothing to choose from.
          _LogitsError: the model's logits are not finite.
        """
        if self._held_to is not None and self._guide is None:
            with _guiding():
                self._guide = self._held_to.start()
        best = int(row.argmax())  # the first NaN, if there is one
        highest = float(row[best])
        if not isfinite(highest):
            raise _LogitsError(f"expected finite logits, got {highest} from the model")
        weighed = self._weighed(row)
        if weighed is not row:
            best = int(weighed.argmax())
            if not isfinite(weighed[best]):
                raise _NoTokenError("no token is left that may come next")
        token = best
        if self._params.temperature >= TEMPERATURE_MIN:
            token = self._draw(weighed, weighed[best])
        self._length += 1
        if self._penalties is not None:
            self._penalties.add(token)
        ends_guide = False
        if self._guide is not None:
            with _guiding():
                self._guide.advance(token)
                ends_guide = self._guide.is_complete
        if self._params.logprobs is None:
            return TokenChoice(token, ends_guide=ends_guide)
        total = highest + log(np.exp(row - highest).sum(dtype=np.float64))
        likeliest = top_indices(row, self._params.logprobs)
        return TokenChoice(
            token,
            logprob=float(row[token]) - total,
            rank=int(np.count_nonzero(row >= row[token])),
            top=tuple((int(each), float(row[each]) - total) for each in likeliest),
            ends_guide=ends_guide,
        )

    def _weighed(self, row: Array) -> Array:
        """Return what the logits are before temperature; `row` itself if nothing changes them."""
        early = self._length < self._params.min_tokens and len(self._ends) > 0
        changes = early or len(self._biased) > 0
        if not (changes or self._guide is not None or self._penalties is not None):
            return row
        weighed = row.astype(np.float32)
        weighed[self._biased] += self._biases
        if self._guide is not None:
            with _guiding():
                allowed = self._guide.allowed_mask()[: len(weighed)]
            np.copyto(weighed[: len(allowed)], -np.inf, where=~allowed)
            weighed[len(allowed) :] = -np.inf
        if early:
            weighed[self._ends] = -np.inf
        if self._penalties is not None:
            self._penalties.apply(weighed)
        return weighed

    def _draw(self, logits: Array, highest: Array) -> int:
        """Return a random token, by temperature and the cuts."""
        params = self._params
        scaled = logits - highest
        scaled /= np.float32(min(params.temperature, EXTREME))
        tokens = np.arange(0)  # what is left, once something is cut
        if params.min_p > 0:
            tokens = np.flatnonzero(scaled >= log(params.min_p))
            scaled = scaled[tokens]
        if 0 < params.top_k < len(scaled):
            kept = _highest(scaled, params.top_k)
            tokens = tokens[kept] if len(tokens) else kept
            scaled = scaled[kept]
        weights = np.exp(scaled)
        if params.top_p < 1:
            kept = _nucleus(weights, params.top_p)
            tokens = tokens[kept] if len(tokens) else kept
            weights = weights[kept]
        sums = weights.cumsum(dtype=np.float64)
        total = float(sums[-1])
        index = int(sums.searchsorted(min(self._random() * total, nextafter(total, 0)), "right"))
        return int(tokens[index]) if len(tokens) else index

    def _random(self) -> float:
        """Return the random number of the next token: in [0, 1), of seed and place alone."""
        place = self._length.to_bytes(8, "little")
        digest = blake2b(self._seed + place, digest_size=8).digest()
        return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53


class _Penalties:
    """Which tokens are penalised, and how much: those of the text, or of prompt and text.

    Args:
      params: The penalties.
      tokens: Different tokens of the prompt.
    """

    def __init__(self, params: SamplingParams, tokens: Array) -> None:
        self._params = params
        self._places = dict(zip(tokens.tolist(), range(len(tokens)), strict=True))
        self._tokens = tokens
        self._counts = np.zeros(len(tokens), np.float32)  # in the text

    @classmethod
    def of(
        cls, params: SamplingParams, prompt: Sequence[int], vocabulary_size: int
    ) -> _Penalties | None:
        """Return the penalties of a text, or None if there are none."""
        repetition = params.repetition_penalty != 1
        if not (repetition or params.presence_penalty or params.frequency_penalty):
            return None
        tokens = np.unique(np.array(prompt if repetition else (), np.intp))
        return cls(params, tokens[tokens < vocabulary_size])

    def add(self, token: int) -> None:
        """Count a token of the text."""
        place = self._places.setdefault(token, len(self._places))
        if place >= len(self._tokens):
            room = max(64, 2 * len(self._tokens))
            self._tokens = np.concatenate([self._tokens, np.zeros(room, np.intp)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._tokens[place] = token
        self._counts[place] += 1

    def apply(self, logits: Array) -> None:
        """Take the penalties off logits, in place."""
        params = self._params
        tokens = self._tokens[: len(self._places)]
        counts = self._counts[: len(self._places)]
        values = logits[tokens]
        penalty = np.float32(min(max(params.repetition_penalty, 1 / EXTREME), EXTREME))
        values = np.where(values > 0, values / penalty, values * penalty)
        values = np.minimum(values, _LOGIT_MAX)
        values -= np.float32(params.frequency_penalty) * counts
        values -= np.float32(params.presence_penalty) * (counts > 0)
        logits[tokens] = values


def top_indices(values: Array, count: int) -> Array:
    """Return the indices of the highest values, best first, of equal ones the lower index.

    Args:
      values: One dimension, without NaN.
      count: How many; at most as many as there are.
    """
    indices = _highest(values, min(count, len(values)))
    return indices[np.argsort(-values[indices], kind="stable")]


def _highest(values: Array, count: int) -> Array:
    """Return the indices of so many highest values, ascending."""
    if count == 0:
        return np.arange(0)
    place = len(values) - count
    return _from(values, np.partition(values, place)[place], count)


def _nucleus(weights: Array, part: float) -> Array:
    """Return the indices of the fewest highest weights that make up `part` of all, ascending."""
    total = weights.sum(dtype=np.float64)
    # All others together are no more than what may be left out, so none of them is needed.
    candidates = weights[weights >= total * (1 - part) / len(weights)]
    candidates.sort()
    descending = candidates[::-1]
    count = int(descending.cumsum(dtype=np.float64).searchsorted(part * total)) + 1
    count = min(count, len(descending))
    return _from(weights, descending[count - 1], count)


def _from(values: Array, least: Array, count: int) -> Array:
    """Return the indices of so many values from `least` up, ascending; lower ones first."""
    indices = np.flatnonzero(values >= least)
    excess = len(indices) - count
    if excess:
        equal = np.flatnonzero(values[indices] == least)
        indices = np.delete(indices, equal[-excess:])
    return indices
