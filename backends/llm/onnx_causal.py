"""An ONNX graph with explicit state as a causal model, executed in place by ONNX Runtime.

Past and present of a layer are bound to the same memory, rows of a `KvCache`, so that a step writes
the state of its own tokens and copies nothing. That takes a graph whose attention allows for it, as
ONNX Runtime's GroupQueryAttention does; any other is refused when it is loaded.
Source: the graphs that onnxruntime-genai's model builder writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import onnxruntime as ort

from ...memory.kv_cache import KvCache
from ...protocol.errors import ErrorCode, RequestError, invalid_argument
from ...protocol.tensors import Array
from ...protocol.wording import names_text, quoted
from ..base import InstancePlace, ModelSource
from ..onnx_session import SessionSettings, model_file, open_session, short_text
from .causal_model import model_fault, tokens_per_row
from .settings import LlmSettings, TensorNames
from .steps import Decode, Prefill, RowCopy, RowSwap

CONTEXT_LENGTH: Final = "context_length"
"""The entry of a graph's metadata that says how many tokens the model can see."""
SPIN_US: Final = 20
"""How long threads wait busily for each other. A step has hundreds of operators of some 50 us each,
and waking a thread takes almost as long; but where others want the CPU, longer waits double the
time of a step."""
PREFILL_TOKENS_MIN: Final = 2
"""GroupQueryAttention sums in another order where it is given one token of a row than for a whole
prompt, which shows in the last bits. Given two, it does not."""
LAYERS_MAX: Final = 1024
"""Most layers of a graph; more than any model has."""

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
}
_FLOATS: Final = ("tensor(float)", "tensor(float16)")
_INTEGERS: Final = ("tensor(int32)", "tensor(int64)")
_PROBE: Final = Prefill(sequence_id=0, row=0, tokens=(0,), past=0, samples=True)


@final
@dataclass(frozen=True, slots=True)
class GraphForm:
    """What a graph takes and gives.

    Attributes:
      counts: Input of whole numbers -> (its data type, its number of dimensions).
      logits: Data type and number of dimensions of the logits.
      vocabulary_size: Their last dimension.
      states: (past, present) names of each tensor of state.
      shapes: (heads, head size) of each tensor of state.
      state_dtype: Of their elements.
      context: How many tokens the model can see; None if the graph does not say.
    """

    counts: Mapping[str, tuple[np.dtype[Any], int]]
    logits: tuple[np.dtype[Any], int]
    vocabulary_size: int
    states: tuple[tuple[str, str], ...]
    shapes: tuple[tuple[int, int], ...]
    state_dtype: np.dtype[Any]
    context: int | None


@final
class OnnxCausalModel:
    """A graph and the state of its rows; see `CausalModel`.

    Raises:
      RequestError: the file is missing, the graph has another form, or cannot work in place.
    """

    contiguous = True
    can_copy = True
    prefill_tokens_min = PREFILL_TOKENS_MIN

    def __init__(self, source: ModelSource, settings: LlmSettings, place: InstancePlace) -> None:
        if place.kind == "GPU":
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f"instance '{place.name}' is for a GPU, but this ONNX Runtime executes on the CPU "
                "only; expected KIND_CPU",
            )
        path, stamp = model_file(source, settings.model)
        threads = settings.onnx_threads(place)
        session_settings = SessionSettings(
            path=str(path),
            file_stamp=stamp,
            intra_op_threads=threads,
            inter_op_threads=1,
            parallel=False,
            memory_arena=True,
            memory_pattern=False,  # plans are kept for each shape, and shapes of prompts vary
            graph_level=0,
            spin_us=SPIN_US if threads > 1 else 0,
        )
        self._session = open_session(session_settings, source.name)
        self._names = settings.tensors
        form = self._form = read_form(self._session, self._names)
        self.vocabulary_size = form.vocabulary_size
        token_bytes = sum(heads * size for heads, size in form.shapes) * form.state_dtype.itemsize
        self.kv_bytes_per_token = token_bytes
        self.tokens_per_row = tokens_per_row(settings, form.context, token_bytes)
        self._cache = KvCache(
            np,
            rows=settings.max_num_seqs,
            tokens=self.tokens_per_row,
            shapes=form.shapes,
            dtype=form.state_dtype,
        )
        self._logits = np.empty((settings.max_num_seqs, self.vocabulary_size), form.logits[0])
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}
        self._check_in_place()

    def _check_in_place(self) -> None:
        """Read one token, which fails where past and present cannot share memory."""
        try:
            self.prefill(_PROBE)
        except RequestError as error:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                "expected a graph whose present keys and values may lie where the past ones do, as "
                f"those of GroupQueryAttention may; {error.message}",
            ) from None

    def swap(self, swap: RowSwap) -> None:
        """Let two rows change places."""
        self._cache.swap(swap.first, swap.second, swap.first_tokens, swap.second_tokens)

    def copy(self, copy: RowCopy) -> None:
        """Put the beginning of one row into another one."""
        self._cache.copy(copy.source, copy.target, copy.tokens)

    def decode(self, decodes: Sequence[Decode], idle_rows: Mapping[int, int]) -> Array:
        """Add one token to some rows, together with all rows below; see `CausalModel`."""
        count = decodes[-1].row + 1
        tokens = np.zeros((count, 1), np.int64)
        past = np.zeros(count, np.int64)
        for row, kept in idle_rows.items():
            past[row] = kept
        for decode in decodes:
            tokens[decode.row] = decode.token
            past[decode.row] = decode.past
        logits = self._run(0, tokens, past)
        if len(decodes) == count:
            return logits
        return logits[[decode.row for decode in decodes]]

    def prefill(self, prefill: Prefill) -> Array:
        """Add tokens to one row; see `CausalModel`."""
        tokens = np.array([prefill.tokens], np.int64)
        return self._run(prefill.row, tokens, np.array([prefill.past], np.int64))

    def close(self) -> None:
        """Let go of session and state."""
        self._bindings.clear()
        del self._session, self._cache

    def _run(self, first: int, tokens: Array, past: Array) -> Array:
        """Execute rows that lie together.

        Args:
          first: The first of them.
          tokens: int64 [rows, tokens].
          past: int64 [rows], tokens there are in each row already.

        Returns:
          float32 [rows, vocabulary], the logits behind the last token of each row.
        """
        rows = len(tokens)
        binding = self._bindings.get((first, rows))
        if binding is None:  # at most two for each row, since rows that decode begin at the first
            binding = self._bindings[first, rows] = self._bind_state(first, rows)
        counts = self._counts(tokens, past)
        for name, array in counts.items():
            binding.bind_cpu_input(name, array)  # does not hold it: `counts` does
        logits = self._logits[:rows]
        if self._form.logits[1] == 3:
            logits = np.empty((*tokens.shape, self.vocabulary_size), self._form.logits[0])
        _bind_output(binding, self._names.logits, logits)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base
            raise model_fault(f"ONNX Runtime failed: {short_text(error)}") from None
        last = logits[:, -1] if logits.ndim == 3 else logits
        return last.astype(np.float32, copy=False)

    def _bind_state(self, first: int, rows: int) -> ort.IOBinding:
        binding = self._session.io_binding()
        views = self._cache.rows(first, rows)
        for (past, present), view in zip(self._form.states, views, strict=True):
            binding.bind_input(past, "cpu", 0, view.dtype, view.shape, view.ctypes.data)
            _bind_output(binding, present, view)
        return binding

    def _counts(self, tokens: Array, past: Array) -> dict[str, Array]:
        """Return those of the inputs with whole numbers that the graph has."""
        rows, count = tokens.shape
        lengths = past + count
        longest = int(lengths.max())
        names = self._names
        made: dict[str, Array] = {}
        for name, (dtype, rank) in self._form.counts.items():
            if name == names.input_ids:
                array = tokens
            elif name == names.attention_mask:
                array = np.arange(longest) < lengths[:, None]
            elif name == names.position_ids:
                array = past[:, None] + np.arange(count)
            elif name == names.seqlens_k:
                array = (lengths - 1).reshape(rows, *[1] * (rank - 1))
            else:
                array = np.array(longest).reshape([1] * rank)
            made[name] = np.ascontiguousarray(array, dtype).reshape(array.shape)
        return made


def _bind_output(binding: ort.IOBinding, name: str, array: Array) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def read_form(session: ort.InferenceSession, names: TensorNames) -> GraphForm:
    """Return the form of a graph.

    Raises:
      RequestError: INVALID_ARG; something is missing, unknown, or of a shape or type that a model
        which generates text cannot have.
    """
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    states = _states(inputs, names)
    known = {names.input_ids, names.attention_mask, names.position_ids}
    known |= {names.seqlens_k, names.total_seq_len}
    counts: dict[str, tuple[np.dtype[Any], int]] = {}
    pasts = {past for past, _ in states}
    for name, node in inputs.items():
        if name in pasts:
            continue
        if name not in known:
            raise invalid_argument(
                f"expected inputs of the graph among {names_text(sorted(known))} and those of its "
                f"state, got {quoted(name)}; 'tensors' says what they are called"
            )
        counts[name] = _dtype(node, _INTEGERS), len(node.shape)
    logits = _node(outputs, names.logits, "an output with logits")
    size = logits.shape[-1] if len(logits.shape) in {2, 3} else None
    if not isinstance(size, int):
        raise invalid_argument(
            f"expected the output {quoted(names.logits)} to be [batch, vocabulary] or "
            f"[batch, tokens, vocabulary] with a fixed vocabulary, got {logits.shape}"
        )
    _node(inputs, names.input_ids, "an input with tokens")
    for _, present in states:
        _node(outputs, present, "an output for the state of each layer")
    past_nodes = [inputs[past] for past, _ in states]
    return GraphForm(
        counts=counts,
        logits=(_dtype(logits, _FLOATS), len(logits.shape)),
        vocabulary_size=size,
        states=states,
        shapes=tuple([_state_shape(node) for node in past_nodes]),
        state_dtype=_state_dtype(past_nodes),
        context=_context(session),
    )


def _states(inputs: Mapping[str, Any], names: TensorNames) -> tuple[tuple[str, str], ...]:
    """Return (past, present) names of keys and values, layer by layer."""
    states: list[tuple[str, str]] = []
    pairs = ((names.past_key, names.present_key), (names.past_value, names.present_value))
    for layer in range(LAYERS_MAX):
        if names.past_key % layer not in inputs:
            break
        states += [(past % layer, present % layer) for past, present in pairs]
    if not states:
        raise invalid_argument(
            f"expected a graph with its state in inputs such as {quoted(names.past_key % 0)}, got "
            f"the inputs {names_text(inputs)}; 'tensors' says what they are called"
        )
    for past, _ in states:
        _node(inputs, past, "an input for the state of each layer")
    return tuple(states)


def _node(nodes: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in nodes:
        raise invalid_argument(
            f"expected {what}, {quoted(name)}, got a graph with {names_text(nodes)}; "
            "'tensors' says what they are called"
        )
    return nodes[name]


def _dtype(node: Any, allowed: Sequence[str]) -> np.dtype[Any]:
    if node.type not in allowed:
        raise invalid_argument(
            f"expected {quoted(node.name)} to be one of {', '.join(allowed)}, got {node.type}"
        )
    return _DTYPES[node.type]


def _state_shape(node: Any) -> tuple[int, int]:
    shape = node.shape
    if len(shape) != 4 or not (isinstance(shape[1], int) and isinstance(shape[3], int)):
        raise invalid_argument(
            f"expected {quoted(node.name)} to be [batch, heads, length, head size] with fixed "
            f"heads and head size, got {shape}"
        )
    return shape[1], shape[3]


def _state_dtype(nodes: Sequence[Any]) -> np.dtype[Any]:
    dtypes = {_dtype(node, _FLOATS) for node in nodes}
    if len(dtypes) > 1:
        raise invalid_argument("expected the state of all layers to have one data type, got two")
    return dtypes.pop()


def _context(session: ort.InferenceSession) -> int | None:
    text = session.get_modelmeta().custom_metadata_map.get(CONTEXT_LENGTH, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
