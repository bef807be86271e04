"""What a response cache keeps, under which key, and the cache in the server's own memory.

Source: Triton's response cache. Its key is a 64-bit hash of model, version, input names and bytes;
here everything the answer may depend on is hashed, and far wider, so that no hit is a wrong one.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

from ..protocol.dtypes import BYTES, ITEM_SIZE_BYTES
from ..protocol.requests import InferRequest, InferResponse, Parameters
from ..protocol.tensors import Buffer, Shape, Tensor, decode_bytes_elements

CacheKey: TypeAlias = bytes

KEY_BYTES: Final = 32
"""Bytes of a key, a SHA-256: nobody finds two requests with one key, not even on purpose, and
today's processors have instructions for it."""

ENTRY_OVERHEAD_BYTES: Final = 512
"""What an entry counts beside its outputs: about what its key and its Python objects take, so that
many tiny answers cannot fill more memory than the cache was given."""

OUTPUT_OVERHEAD_BYTES: Final = 256
"""What each output counts beside its bytes, likewise."""

ENTRY_BYTES_MIN: Final = ENTRY_OVERHEAD_BYTES + OUTPUT_OVERHEAD_BYTES
"""What an entry with an output counts at least; a cache with less room keeps nothing."""

PARAMETER_OVERHEAD_BYTES: Final = 128
"""What each response parameter counts beside its texts, likewise."""

_MAGIC: Final = b"tritrio\x01"  # the last byte is the version of the format
_HEADER_LENGTH = struct.Struct("<I")
_START: Final = len(_MAGIC) + _HEADER_LENGTH.size
_LENGTH = struct.Struct("<Q")
_PARAMETER_TYPES: Final = (bool, int, float, str)


class CacheFaultError(Exception):
    """A cache cannot be used just now; the message says why, in one sentence without secrets."""


class CacheBusyError(Exception):
    """Other calls of this server kept one from being made; nothing is wrong with the cache."""


class CachedOutput(NamedTuple):
    """One output of an entry: what a `Tensor` is made of."""

    name: str
    datatype: str
    shape: Shape
    raw: Buffer


@final
class Entry:
    """The outputs and the parameters of one successful response; nobody changes them.

    Attributes:
      outputs: In the order of the response.
      parameters: What the model set. Triton forgets these, so that its hits lack them.
      byte_size: What the entry counts in a cache: `ENTRY_OVERHEAD_BYTES`; for each output
        `OUTPUT_OVERHEAD_BYTES`, the characters of its name and its raw bytes; for each parameter
        `PARAMETER_OVERHEAD_BYTES` and the characters of its name and of its value as text.
    """

    __slots__ = ("byte_size", "outputs", "parameters")

    def __init__(self, outputs: tuple[CachedOutput, ...], parameters: Parameters) -> None:
        self.outputs = outputs
        self.parameters = parameters
        self.byte_size = (
            ENTRY_OVERHEAD_BYTES
            + sum(OUTPUT_OVERHEAD_BYTES + len(each.name) + len(each.raw) for each in outputs)
            + sum(
                PARAMETER_OVERHEAD_BYTES + len(name) + len(str(value))
                for name, value in parameters.items()
            )
        )

    def __repr__(self) -> str:
        names = ", ".join(each.name for each in self.outputs)
        return f"<Entry of {names}: {self.byte_size} bytes>"

    @classmethod
    def of(cls, response: InferResponse) -> Entry:
        """Return what is kept of a response; borrows the tensors' bytes."""
        outputs = tuple(
            CachedOutput(tensor.name, tensor.datatype, tensor.shape, tensor.raw)
            for tensor in response.outputs
        )
        return cls(outputs, response.parameters.copy())

    def owned(self) -> Entry:
        """Return the entry with bytes of its own, whatever becomes of the borrowed ones."""
        outputs = tuple(each._replace(raw=bytes(each.raw)) for each in self.outputs)
        return Entry(outputs, self.parameters)

    def response(self, model_name: str, model_version: str, request_id: str) -> InferResponse:
        """Return a new final response with these outputs, which are views on the entry's bytes."""
        outputs = [
            Tensor(name, datatype, shape, raw=raw) for name, datatype, shape, raw in self.outputs
        ]
        response = InferResponse(model_name, model_version, request_id, outputs)
        response.parameters = self.parameters.copy()
        return response


@final
@dataclass(slots=True)
class CacheStatistics:
    """What happened in one cache, whichever model asked; the durations are nanoseconds.

    Attributes:
      hits: Look-ups that found an entry.
      misses: Look-ups that did not.
      evictions: Entries that made room for others.
      lookup_ns: Time of all look-ups, kept by whoever calls.
      insertion_ns: Time of all insertions, likewise.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class ResponseCache(Protocol):
    """Where entries are kept.

    Attributes:
      blocking: Whether calls may wait, so that they belong on a worker thread; then they may come
        from several threads at once.
    """

    @property
    def blocking(self) -> bool:
        """See the class."""

    def lookup(self, key: CacheKey) -> Entry | None:
        """Return the entry of a key.

        Raises:
          CacheFaultError: the cache cannot be used.
          CacheBusyError: it has too much to do for us.
        """

    def insert(self, key: CacheKey, entry: Entry) -> None:
        """Keep an entry unless its key has a good one already, or it is too large.

        Raises:
          CacheFaultError: the cache cannot be used.
          CacheBusyError: it has too much to do for us.
        """

    def close(self) -> None:
        """Let go of connections; the cache is not used any more."""


@final
class LocalCache:
    """Keeps entries in memory; the one used longest ago goes first.

    Args:
      size_bytes: Most bytes of all entries, as `Entry.byte_size` counts them; > 0.

    Attributes:
      size_bytes: As given.
      used_bytes: The sum of `Entry.byte_size` of what it holds; never more than `size_bytes`.
      statistics: What happened so far.
    """

    blocking: Final = False

    def __init__(self, size_bytes: int) -> None:
        assert size_bytes > 0, "a cache without room is no cache"
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.statistics = CacheStatistics()
        self._entries: OrderedDict[CacheKey, Entry] = OrderedDict()

    def __repr__(self) -> str:
        return f"<LocalCache {len(self)} entries, {self.used_bytes} of {self.size_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, key: CacheKey) -> Entry | None:
        """Return the entry of a key, which is then the last to go."""
        entry = self._entries.get(key)
        if entry is None:
            self.statistics.misses += 1
            return None
        self.statistics.hits += 1
        self._entries.move_to_end(key)
        return entry

    def insert(self, key: CacheKey, entry: Entry) -> None:
        """Keep a copy of an entry, unless its key has one or it is larger than the cache."""
        if entry.byte_size > self.size_bytes or key in self._entries:
            return
        while self.used_bytes + entry.byte_size > self.size_bytes:
            _, evicted = self._entries.popitem(last=False)
            self.used_bytes -= evicted.byte_size
            self.statistics.evictions += 1
        self._entries[key] = entry.owned()
        self.used_bytes += entry.byte_size

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.used_bytes = 0


def input_bytes(request: InferRequest) -> int:
    """Return the bytes that `request_key` has to hash."""
    return sum(tensor.byte_size for tensor in request.inputs.values())


def request_key(model_name: str, model_version: str, load: str, request: InferRequest) -> CacheKey:
    """Return the key of a request: equal for requests that a model cannot tell apart.

    It covers the model, its version, the inputs whatever their order (name, datatype, shape,
    bytes), the names of the outputs asked for whatever their order, the custom parameters, and the
    sequence if there is one (id, start, end), which a model may look at whatever schedules it. It
    leaves out the id, the priority and the timeout, which are of the request and not of the
    answer, and how outputs are encoded (binary data, classes), which comes after the cache.

    Args:
      model_name: The model that will run.
      model_version: The version that will run, which the request need not name.
      load: Which load of it, where answers of an earlier one are not to be found.
      request: Checked against the model.
    """
    inputs = sorted(request.inputs.values(), key=_name)
    header: tuple[object, ...] = (
        model_name,
        model_version,
        load,
        [(tensor.name, tensor.datatype, tensor.shape, tensor.byte_size) for tensor in inputs],
        sorted([output.name for output in request.outputs]),
        sorted(request.parameters.items(), key=_first),
    )
    if request.sequence_id or request.sequence_start or request.sequence_end:
        header += (request.sequence_id, request.sequence_start, request.sequence_end)
    text = repr(header).encode("utf-8", "surrogatepass")
    digest = sha256(_LENGTH.pack(len(text)))
    digest.update(text)
    for tensor in inputs:
        digest.update(tensor.raw)
    return digest.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name


def _first(item: tuple[str, object]) -> str:
    return item[0]


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as bytes that say which format they are of; see `decode_entry`.

    Eight bytes that name the format, the length of a JSON header (uint32), the header, and the
    raw bytes of the outputs, one after the other.
    """
    header = {
        "outputs": [
            [name, datatype, shape, len(raw)] for name, datatype, shape, raw in entry.outputs
        ],
        "parameters": entry.parameters,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    raws = [raw for _, _, _, raw in entry.outputs]
    return b"".join([_MAGIC, _HEADER_LENGTH.pack(len(text)), text, *raws])


def decode_entry(data: bytes) -> Entry:
    """Return the entry in some bytes; its outputs are views on them.

    Raises:
      ValueError: the bytes are no entry, or one of another version; says what is wrong.
    """
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _START:
        raise ValueError("expected an entry of this version")
    (length,) = _HEADER_LENGTH.unpack_from(data, len(_MAGIC))
    start = _START + length
    if start > len(data):
        raise ValueError(f"expected a header of {length} bytes, got {len(data) - _START}")
    try:
        header = json.loads(data[_START:start])
        outputs, parameters = header["outputs"], header["parameters"]
        described = [_described(output) for output in outputs]
    except (LookupError, RecursionError, TypeError, ValueError) as fault:
        raise ValueError(f"expected the header of an entry: {fault}") from None
    if type(parameters) is not dict or not all(
        type(value) in _PARAMETER_TYPES for value in parameters.values()
    ):
        raise ValueError("expected plain response parameters")
    view = memoryview(data)
    made: list[CachedOutput] = []
    for name, datatype, shape, size in described:
        made.append(CachedOutput(name, datatype, shape, view[start : start + size]))
        start += size
    if start != len(data):
        raise ValueError(f"expected {start} bytes, got {len(data)}")
    for output in made:
        _check_raw(output)
    return Entry(tuple(made), parameters)


def _described(output: Sequence[Any]) -> tuple[str, str, Shape, int]:
    name, datatype, shape, size = output
    if type(name) is not str or (datatype != BYTES and datatype not in ITEM_SIZE_BYTES):
        raise ValueError("an output needs a name and a known datatype")
    if type(shape) is not list or not all(type(n) is int and n >= 0 for n in [*shape, size]):
        raise ValueError("an output needs a shape and a size")
    return name, datatype, tuple(shape), size


def _check_raw(output: CachedOutput) -> None:
    count = 1
    for dimension in output.shape:
        count *= dimension
    if output.datatype == BYTES:
        fits = len(decode_bytes_elements(output.raw)) == count
    else:
        fits = len(output.raw) == count * ITEM_SIZE_BYTES[output.datatype]
    if not fits:
        raise ValueError(f"the bytes of output {output.name!r} do not fit its shape")
