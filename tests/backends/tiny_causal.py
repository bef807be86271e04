"""A tiny causal model of random weights as an ONNX graph, in several forms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.backends.builders import source_in
from tritrio.backends.base import ModelSource

LAYERS, WIDTH, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 2, 64, 4, 2, 64, 64
HEAD_SIZE = WIDTH // HEADS
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * HEAD_SIZE * 4


def write_tiny(
    directory: Path,
    *,
    masked: bool = False,
    all_logits: bool = False,
    in_place: bool = True,
    context: bool = True,
    state: str = "past_key_values.%d.",
    settings: str = "{}",
) -> ModelSource:
    """Write the model, its settings and a tokenizer into version 1 of a model directory.

    Args:
      directory: Of the repository.
      masked: Whether lengths come from an attention mask, as in published graphs.
      all_logits: Whether there are logits behind each token, [batch, tokens, vocabulary].
      in_place: Whether past and present may share memory; else present is one token longer.
      context: Whether the graph says how many tokens it sees.
      state: What the inputs of the state begin with.
      settings: Content of model.json.
    """
    source = source_in(directory)
    onnx.save(_model(masked, all_logits, in_place, context, state), _in(source, "model.onnx"))
    _in(source, "model.json").write_text(settings)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(_in(source, "tokenizer.json")))
    return source


def _in(source: ModelSource, filename: str) -> Path:
    return source.version_directory / filename


def _model(masked: bool, all_logits: bool, in_place: bool, context: bool, state: str) -> Any:
    random = np.random.default_rng(7)
    constants: list[Any] = []
    nodes: list[Any] = []

    def constant(array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        name: str = constants[-1].name
        return name

    def weight(*shape: int) -> str:
        return constant(random.normal(0, 0.6, shape).astype(np.float32))

    def op(kind: str, inputs: Sequence[str], *outputs: str, domain: str = "", **more: Any) -> str:
        names = outputs or (f"v{len(nodes)}",)
        nodes.append(helper.make_node(kind, inputs, names, domain=domain, **more))
        return names[0]

    lengths = ["seqlens_k", "total_seq_len"]
    if masked:
        total = op("ReduceSum", ["attention_mask", constant(np.array([1]))], keepdims=0)
        one = constant(np.array(1, np.int64))
        width = op("Gather", [op("Shape", ["attention_mask"]), one])
        lengths = [
            op("Cast", [op("Sub", [total, one])], to=TensorProto.INT32),
            op("Cast", [width], to=TensorProto.INT32),
        ]
    angles = np.outer(np.arange(CONTEXT), 100.0 ** -(np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE))
    tables = [constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    hidden = op("Gather", [weight(VOCABULARY, WIDTH), "input_ids"])
    states: list[tuple[str, str]] = []
    for layer in range(LAYERS):
        pairs = [(f"{state % layer}{kind}", f"present.{layer}.{kind}") for kind in ("key", "value")]
        states += pairs
        packed = op("MatMul", [hidden, weight(WIDTH, WIDTH + 2 * KV_HEADS * HEAD_SIZE)])
        presents = [new if in_place else f"{new}.short" for _, new in pairs]
        attended = op(
            "GroupQueryAttention",
            [packed, "", "", *[past for past, _ in pairs], *lengths, *tables],
            f"attended{layer}",
            *presents,
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )
        if not in_place:
            for (past, new), short in zip(pairs, presents, strict=True):
                begin = op("Slice", [past, *[constant(np.array([n])) for n in (0, 1, 2)]])
                op("Concat", [short, begin], new, axis=2)
        hidden = op("Tanh", [op("Add", [hidden, op("MatMul", [attended, weight(WIDTH, WIDTH)])])])
    if not all_logits:
        hidden = op("Gather", [hidden, constant(np.array(-1))], axis=1)
    op("MatMul", [hidden, weight(WIDTH, VOCABULARY)], "logits")

    value = helper.make_tensor_value_info
    inputs = [value("input_ids", TensorProto.INT64, ["batch", "tokens"])]
    if masked:
        inputs += [value("attention_mask", TensorProto.INT64, ["batch", "all"])]
        inputs += [value("position_ids", TensorProto.INT64, ["batch", "tokens"])]
    else:
        inputs += [value("seqlens_k", TensorProto.INT32, ["batch"])]
        inputs += [value("total_seq_len", TensorProto.INT32, [1])]
    form: list[int | str] = ["batch", *(["tokens"] if all_logits else []), VOCABULARY]
    outputs = [value("logits", TensorProto.FLOAT, form)]
    for past, present in states:
        shape: list[int | str] = ["batch", KV_HEADS, "length", HEAD_SIZE]
        inputs.append(value(past, TensorProto.FLOAT, shape))
        outputs.append(value(present, TensorProto.FLOAT, [*shape[:2], "after", HEAD_SIZE]))
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    if context:
        helper.set_model_props(model, {"context_length": str(CONTEXT)})
    return model
