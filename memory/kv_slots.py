"""Which row holds the state of which tokens, and what that takes of a byte budget.

A row has room for the state (keys and values) of one sequence. Rows in use are *live*; a row that
nobody uses may keep what it holds, *cached*, for a sequence that begins with the same tokens. This
is bookkeeping alone: the arrays lie elsewhere, and whoever calls says them what to copy. Pure and
single-threaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

KV_BLOCK_TOKENS: Final = 16
"""Tokens by which the state of a sequence grows in the books, and by which common beginnings are
looked for: few enough that rounding up wastes little, and as many as vLLM's blocks have."""


@final
class TokenChain:
    """Tokens that only ever become more, with a hash for each beginning of whole blocks.

    Sequences and rows share one, so that nothing is copied when a row changes hands: what a row
    holds is a beginning of it.

    Args:
      tokens: The first tokens.

    Attributes:
      tokens: All of them; borrowed, to be read only.
    """

    __slots__ = ("_hashes", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self._hashes: list[int] = []
        self._hash_blocks()

    def __repr__(self) -> str:
        return f"<TokenChain of {len(self.tokens)}>"

    def append(self, token: int) -> None:
        """Add one token."""
        self.tokens.append(token)
        if len(self.tokens) % KV_BLOCK_TOKENS == 0:
            self._hash_blocks()

    def _hash_blocks(self) -> None:
        hashes = self._hashes
        previous = hashes[-1] if hashes else 0
        for block in range(len(hashes), len(self.tokens) // KV_BLOCK_TOKENS):
            start = block * KV_BLOCK_TOKENS
            previous = hash((previous, *self.tokens[start : start + KV_BLOCK_TOKENS]))
            hashes.append(previous)

    def common_tokens(self, other: TokenChain, tokens_max: int) -> int:
        """Return with how many equal tokens both begin, `tokens_max` at most."""
        common = self.likely_common_tokens(other, tokens_max)
        if self.tokens[:common] == other.tokens[:common]:
            return common
        pairs = enumerate(zip(self.tokens, other.tokens, strict=False))
        return next(index for index, (mine, others) in pairs if mine != others)

    def likely_common_tokens(self, other: TokenChain, tokens_max: int) -> int:
        """Return with how many equal tokens both begin as far as hashes tell; fast.

        Each hash stands for all tokens before it, so that bisection finds the last equal one. They
        collide if somebody wants them to: never use state for which this is the only evidence.
        """
        mine, others = self.tokens, other.tokens
        end = min(tokens_max, len(mine), len(others))
        if end <= 0 or mine[0] != others[0]:
            return 0
        low, high = 0, end // KV_BLOCK_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if self._hashes[middle - 1] == other._hashes[middle - 1]:
                low = middle
            else:
                high = middle - 1
        start = low * KV_BLOCK_TOKENS
        while start < end and mine[start] == others[start]:
            start += 1
        return start


@dataclass(slots=True)
class _Row:
    """What one row holds: the state of the first `tokens` tokens of `chain`."""

    chain: TokenChain
    tokens: int = 0
    blocks: int = 0
    live: bool = False
    used: int = 0


@dataclass(frozen=True, slots=True)
class KvPlace:
    """Where a sequence got its row.

    Attributes:
      row: Its row.
      tokens: Tokens of its beginning whose state is there already, or comes from `source`.
      source: The row from which that is to be copied; None if it lies in `row`.
    """

    row: int
    tokens: int
    source: int | None = None


class KvSlots:
    """The books of all rows of one model.

    A live row is charged for the tokens it was reserved for, a cached one for those it holds, both
    rounded up to whole blocks. `used_bytes + cached_bytes` never exceeds the budget: when live rows
    need more, cached state goes, the least recently used first and of that the end first.

    Args:
      rows: How many rows there are.
      tokens_per_row: Most tokens of a sequence.
      bytes_per_token: Bytes of state of one token; 0 charges nothing.
      budget_bytes: Most bytes of all rows together.
      prefix_caching: Whether rows keep what nobody uses and sequences begin with it.

    Attributes:
      free_rows: How many rows nobody uses.
    """

    def __init__(
        self,
        *,
        rows: int,
        tokens_per_row: int,
        bytes_per_token: int,
        budget_bytes: int,
        prefix_caching: bool,
    ) -> None:
        assert rows > 0, "without a row nothing has state"
        assert bytes_per_token >= 0, "state cannot be negative"
        self._block_bytes = bytes_per_token * KV_BLOCK_TOKENS
        self._tokens_per_row = tokens_per_row
        self._budget_bytes = budget_bytes
        self._prefix_caching = prefix_caching
        self._rows = [_Row(TokenChain()) for _ in range(rows)]
        self._used_blocks = 0
        self._cached_blocks = 0
        self._clock = 0
        self.free_rows = rows

    def __repr__(self) -> str:
        return (
            f"<KvSlots {self.used_bytes} used and {self.cached_bytes} cached"
            f" of {self._budget_bytes} bytes, {self.free_rows} rows free>"
        )

    @property
    def used_bytes(self) -> int:
        """Bytes charged for live rows."""
        return self._used_blocks * self._block_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes charged for state that nobody uses."""
        return self._cached_blocks * self._block_bytes

    @property
    def state_tokens_max(self) -> int:
        """Most tokens of one sequence whose state fits, if it has the budget for itself."""
        if not self._block_bytes:
            return self._tokens_per_row
        budget_blocks = self._budget_bytes // self._block_bytes
        return min(self._tokens_per_row, budget_blocks * KV_BLOCK_TOKENS)

    def charge_bytes(self, tokens: int) -> int:
        """Return what a sequence of so many tokens is charged."""
        return blocks_of(tokens) * self._block_bytes

    @property
    def growing_rows(self) -> int:
        """How many live rows may yet be charged for another block."""
        most = blocks_of(self._tokens_per_row)
        return sum(row.live and row.blocks < most for row in self._rows)

    def tokens_in(self, row: int) -> int:
        """Return of how many tokens a row holds the state, live or cached."""
        return self._rows[row].tokens

    def fits(self, tokens: int, *, spare_blocks: int = 0) -> bool:
        """Return whether there is room for a new sequence, if need be in place of cached state.

        Args:
          tokens: How many it has.
          spare_blocks: Blocks that are to be left over.
        """
        blocks = self._used_blocks + blocks_of(tokens) + spare_blocks
        return blocks * self._block_bytes <= self._budget_bytes

    def prefix_tokens(self, chain: TokenChain) -> int:
        """Return how many tokens `take` would not have to be computed for this sequence."""
        return self._best_source(chain)[1]

    def take(self, chain: TokenChain) -> KvPlace:
        """Give a sequence a row, charged for all its tokens; `fits` and a free row are given.

        At least its last token is left to be computed.
        """
        assert self.free_rows, "every row is in use"
        source, common = self._best_source(chain)
        target = self._target(source, common, blocks_of(len(chain.tokens)))
        self._clock += 1
        if source is not None:
            self._rows[source].used = self._clock
        row = self._rows[target]
        self._cached_blocks -= row.blocks
        self._rows[target] = _Row(chain, common, 0, live=True, used=self._clock)
        self.free_rows -= 1
        fitted = self.reserve(target, len(chain.tokens))
        assert fitted, "the room was not asked for"
        return KvPlace(target, common, None if source == target else source)

    def _best_source(self, chain: TokenChain) -> tuple[int | None, int]:
        """Return which row has the most of a sequence's beginning, and how many tokens of it.

        Where hashes mislead, this is not the best one, but what is returned is there.
        """
        if not self._prefix_caching:
            return None, 0
        tokens_max = len(chain.tokens) - 1
        best = (0, True, 0)
        source = None
        for index, row in enumerate(self._rows):
            common = chain.likely_common_tokens(row.chain, min(tokens_max, row.tokens))
            found = (common, not row.live, common - row.tokens)
            if found > best:
                source, best = index, found
        if source is not None:
            common = chain.common_tokens(self._rows[source].chain, best[0])
            if common >= KV_BLOCK_TOKENS:  # less is worth neither a copy nor what the row holds
                return source, common
        return None, 0

    def _target(self, source: int | None, common: int, blocks: int) -> int:
        """Return the row for a new sequence: the source itself, or where least is lost."""
        rows = self._rows
        spare = min(
            (index for index, row in enumerate(rows) if not row.live and index != source),
            key=lambda index: (rows[index].used if rows[index].tokens else -1, index),
            default=None,
        )
        if source is None or rows[source].live:
            assert spare is not None, "every row is in use"
            return spare
        lost = rows[source].tokens - common
        if spare is None or lost < KV_BLOCK_TOKENS:
            return source
        other = rows[spare]
        both = self._used_blocks + self._cached_blocks - other.blocks + blocks
        roomy = both * self._block_bytes <= self._budget_bytes
        return spare if roomy and other.tokens < lost else source

    def reserve(self, row: int, tokens: int) -> bool:
        """Charge a live row for so many tokens; False leaves it as it was: others use the room."""
        held = self._rows[row]
        assert held.live, "nobody uses this row"
        assert tokens <= self._tokens_per_row, "more than a row has room for"
        more = blocks_of(tokens) - held.blocks
        if more <= 0:
            return True
        if (self._used_blocks + more) * self._block_bytes > self._budget_bytes:
            return False
        held.blocks += more
        self._used_blocks += more
        self._evict()
        return True

    def fill(self, row: int, tokens: int) -> None:
        """Note that a live row holds the state of the first `tokens` tokens of its sequence."""
        held = self._rows[row]
        assert held.live, "nobody uses this row"
        assert held.tokens <= tokens <= held.blocks * KV_BLOCK_TOKENS, "state without room"
        held.tokens = tokens

    def release(self, row: int, *, keep: bool = True) -> None:
        """Take a row from its sequence; what it holds stays cached if it is to be kept."""
        held = self._rows[row]
        assert held.live, "nobody uses this row"
        self.free_rows += 1
        self._used_blocks -= held.blocks
        held.live = False
        if keep and self._prefix_caching and held.tokens:
            self._clock += 1
            held.used = self._clock
            held.blocks = blocks_of(held.tokens)
            self._cached_blocks += held.blocks
        else:
            self._rows[row] = _Row(TokenChain())

    def swap(self, first: int, second: int) -> None:
        """Note that two rows changed places."""
        rows = self._rows
        rows[first], rows[second] = rows[second], rows[first]

    def clear_cached(self) -> None:
        """Forget all that nobody uses."""
        for index, row in enumerate(self._rows):
            if not row.live:
                self._rows[index] = _Row(TokenChain())
        self._cached_blocks = 0

    def _evict(self) -> None:
        """Drop cached state until live rows have the room that they are charged for."""
        while (self._used_blocks + self._cached_blocks) * self._block_bytes > self._budget_bytes:
            over_bytes = self.used_bytes + self.cached_bytes - self._budget_bytes
            index = min(
                (index for index, row in enumerate(self._rows) if not row.live and row.blocks),
                key=lambda index: self._rows[index].used,
            )
            row = self._rows[index]
            dropped = min(row.blocks, -(-over_bytes // self._block_bytes))
            self._cached_blocks -= dropped
            row.blocks -= dropped
            row.tokens = row.blocks * KV_BLOCK_TOKENS
            if not row.blocks:
                self._rows[index] = _Row(TokenChain())


def blocks_of(tokens: int) -> int:
    """Return how many blocks the state of so many tokens takes."""
    return -(-tokens // KV_BLOCK_TOKENS)
