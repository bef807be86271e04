"""The ensembles of the scheduling tests, and those that must not load."""

from __future__ import annotations

from .repository import _tensor as tensor

Mapping = dict[str, str]
INPUT0 = tensor("INPUT0", "INT32", "1")
MODE = tensor("MODE", "BYTES", "1")
OPTIONAL = [tensor(name, "BYTES", "1", "optional: true") for name in ("GATE", "MODE")]
OUTPUT0 = tensor("OUTPUT0", "INT32", "1")
FACTS = tensor("FACTS", "BYTES", "1")
SAME = {"INPUT0": "INPUT0"}
STREAM = "model_transaction_policy { decoupled: true }"


def step(model: str, inputs: Mapping, outputs: Mapping, version: int = -1) -> str:
    """A step; the maps are the model's tensor name -> the ensemble's."""
    maps = [
        f'{name} {{ key: "{key}" value: "{value}" }}'
        for name, given in (("input_map", inputs), ("output_map", outputs))
        for key, value in given.items()
    ]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(
    rows_max: int, inputs: list[str], outputs: list[str], *steps: str, more: str = ""
) -> str:
    """The configuration of an ensemble."""
    lines = ['platform: "ensemble"', f"max_batch_size: {rows_max}"]
    lines += [f"input {entry}" for entry in inputs]
    lines += [f"output {entry}" for entry in outputs]
    return "\n".join([*lines, "ensemble_scheduling {", *steps, "}", more, ""])


def numbers(*names: str) -> list[str]:
    """Tensors of one INT32."""
    return [tensor(name, "INT32", "1") for name in names]


def increase(source: str, target: str, model: str = "increase") -> str:
    """A step that adds one."""
    return step(model, {"INPUT0": source}, {"OUTPUT0": target})


LAST = increase("middle", "OUTPUT0")

ENSEMBLES = {
    "one_step": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0")),
    "chain": ensemble(
        0,
        [INPUT0],
        numbers("OUTPUT0", "OTHER"),
        increase("INPUT0", "middle"),
        step("increase", {"INPUT0": "middle"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OTHER"}),
    ),
    "branches": ensemble(
        0,
        [INPUT0],
        numbers("LEFT", "RIGHT", "JOINED"),
        step("increase", SAME, {"OUTPUT0": "LEFT"}),
        step("plain", SAME, {"OUTPUT0": "RIGHT"}),
        step("pair", {"INPUT0": "LEFT", "INPUT1": "RIGHT"}, {"OUTPUT1": "JOINED"}),
    ),
    "sides": ensemble(
        0,
        [INPUT0],
        numbers("LEFT", "RIGHT"),
        step("increase", SAME, {"OUTPUT0": "LEFT"}),
        step("plain", SAME, {"OUTPUT0": "RIGHT"}),
    ),
    "rows": ensemble(
        4,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "middle", "increase4"),
        increase("middle", "OUTPUT0", "increase4"),
    ),
    "mixed": ensemble(
        4,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "middle", "increase4"),
        increase("middle", "OUTPUT0", "column"),
    ),
    "watched": ensemble(
        0,
        [INPUT0, *OPTIONAL],
        [FACTS, OUTPUT0],
        step(
            "plain",
            {**SAME, "GATE": "GATE", "MODE": "MODE"},
            {"FACTS": "FACTS", "OUTPUT0": "OUTPUT0"},
        ),
    ),
    "failing": ensemble(
        0,
        [INPUT0, MODE],
        [OUTPUT0],
        step("plain", {**SAME, "MODE": "MODE"}, {"OUTPUT0": "middle"}),
        LAST,
    ),
    "optional": ensemble(
        0,
        [INPUT0, tensor("EXTRA", "INT32", "1", "optional: true")],
        [FACTS, *numbers("OUTPUT0", "OUTPUT1")],
        step(
            "pair",
            {**SAME, "INPUT1": "EXTRA"},
            {"FACTS": "FACTS", "OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"},
        ),
    ),
    "stream": ensemble(
        0, [INPUT0], [OUTPUT0], increase("INPUT0", "middle", "repeat"), LAST, more=STREAM
    ),
    "stream_twice": ensemble(
        0,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "middle", "repeat"),
        increase("middle", "OUTPUT0", "repeat"),
        more=STREAM,
    ),
    "stream_unsaid": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "middle", "repeat"), LAST),
    "in_sequence": ensemble(
        0,
        [INPUT0],
        [FACTS, OUTPUT0],
        step("direct_one", SAME, {"FACTS": "FACTS", "OUTPUT0": "OUTPUT0"}),
    ),
    "nested": ensemble(
        0,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "middle", "chain"),
        increase("middle", "OUTPUT0", "one_step"),
    ),
    "labelled": ensemble(4, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "increase4")),
    "cached_whole": ensemble(
        0,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "OUTPUT0"),
        more="response_cache { enable: true }",
    ),
    "cached_step": ensemble(4, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "cached")),
}
"""Ensemble name -> its configuration."""

FAULTY = {
    "no_model": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "nobody")),
    "no_version": ensemble(
        0, [INPUT0], [OUTPUT0], step("increase", SAME, {"OUTPUT0": "OUTPUT0"}, version=7)
    ),
    "other_type": ensemble(
        0, [tensor("INPUT0", "FP32", "1")], [OUTPUT0], increase("INPUT0", "OUTPUT0")
    ),
    "other_shape": ensemble(
        0, [tensor("INPUT0", "INT32", "2")], [OUTPUT0], increase("INPUT0", "OUTPUT0")
    ),
    "larger_batch": ensemble(8, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "increase4")),
    "no_such_input": ensemble(
        0, [INPUT0], [OUTPUT0], step("increase", {"NOPE": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})
    ),
    "no_such_output": ensemble(0, [INPUT0], [OUTPUT0], step("increase", SAME, {"NOPE": "OUTPUT0"})),
    "required_input": ensemble(
        0, [MODE], [OUTPUT0], step("plain", {"MODE": "MODE"}, {"OUTPUT0": "OUTPUT0"})
    ),
    "unused_input": ensemble(
        0, [INPUT0, *numbers("SPARE")], [OUTPUT0], increase("INPUT0", "OUTPUT0")
    ),
    "unwritten_output": ensemble(
        0, [INPUT0], [OUTPUT0, *numbers("SPARE")], increase("INPUT0", "OUTPUT0")
    ),
    "unused_middle": ensemble(
        0,
        [INPUT0],
        [OUTPUT0],
        step("increase", SAME, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "spare"}),
    ),
    "written_twice": ensemble(
        0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0"), increase("INPUT0", "OUTPUT0")
    ),
    "no_steps": ensemble(0, [INPUT0], [OUTPUT0]),
    "no_maps": ensemble(
        0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0"), step("increase", {}, {})
    ),
    "itself": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "itself")),
    "circle_a": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "circle_b")),
    "circle_b": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "circle_a")),
    "instances": ensemble(
        0,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "OUTPUT0"),
        more="instance_group { count: 1 }",
    ),
    "on_a_faulty_one": ensemble(0, [INPUT0], [OUTPUT0], increase("INPUT0", "OUTPUT0", "no_model")),
    "two_streams": ensemble(
        0,
        [INPUT0],
        [OUTPUT0],
        increase("INPUT0", "left", "repeat"),
        increase("INPUT0", "right", "repeat"),
        step("pair", {"INPUT0": "left", "INPUT1": "right"}, {"OUTPUT0": "OUTPUT0"}),
        more=STREAM,
    ),
}
"""Ensembles that cannot be loaded."""
