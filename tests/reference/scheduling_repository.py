"""The model repository of the scheduling tests: sequences, queues, caches and ensembles."""

from __future__ import annotations

from pathlib import Path

from .repository import _config as config, _tensor as tensor
from .scheduling_ensembles import ENSEMBLES, FAULTY
from .scheduling_models import INCREASE, ITERATE, REPEAT, STATEFUL, WITNESS

IDLE_MAX_US = 20_000_000
"""Longer than any case lasts, so that no slow machine loses a sequence."""
IDLE_SHORT_US = 200_000
DELAY_US = 20_000_000
"""Longer than any case lasts: a batch that leaves did not leave for its delay."""
TIMEOUT_US = 2_000_000
"""A default long enough for a request that must not expire while others do."""
TWICE = "instance_group { kind: KIND_CPU }"
"""A second group, so a second instance."""

ONE = tensor("INPUT0", "INT32", "1")
DIALS = [tensor(name, "BYTES", "1", "optional: true") for name in ("GATE", "MODE")]
FACTS = tensor("FACTS", "BYTES", "1")
OUTPUT0 = tensor("OUTPUT0", "INT32", "1")
OUTPUT1 = tensor("OUTPUT1", "INT32", "1")
STREAM = "model_transaction_policy { decoupled: true }"
CACHE = "response_cache { enable: true }"

Model = tuple[str, str]
"""A model's source and configuration."""


def witness(rows_max: int, more: str = "") -> Model:
    """A model that reports what it is given, for rows of one element."""
    return WITNESS, config(rows_max, [ONE, *DIALS], [FACTS, OUTPUT0], more)


def wide(more: str) -> Model:
    """The same for at most four rows, of any length."""
    outputs = [FACTS, tensor("OUTPUT0", "INT32", "-1")]
    return WITNESS, config(4, [tensor("INPUT0", "INT32", "-1"), *DIALS], outputs, more)


def control(kind: str, values: str = "int32_false_true: [0, 1]") -> str:
    """A control input, named as its kind."""
    entry = f"kind: CONTROL_SEQUENCE_{kind} {values}"
    return f'control_input {{ name: "{kind}" control {{ {entry} }} }}'


def sequences(strategy: str, *controls: str, idle_us: int = IDLE_MAX_US) -> str:
    """A sequence batcher; without controls given, all four, the id as UINT64."""
    given = controls or (*map(control, ("START", "END", "READY")), correlation("UINT64"))
    return f"sequence_batching {{ max_sequence_idle_microseconds: {idle_us} {strategy}\n" + (
        "\n".join(given) + "\n}"
    )


def correlation(kind: str) -> str:
    """The control input with the sequence id."""
    return control("CORRID", f"data_type: TYPE_{kind}")


def queue(fields: str = "", policy: str = "") -> str:
    """A dynamic batcher, perhaps with a default queue policy."""
    policies = f"default_queue_policy {{ {policy} }}" if policy else ""
    return f"dynamic_batching {{ {fields} {policies} }}"


STATE = (
    'state { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [1]'
    ' initial_state { name: "zero" data_type: TYPE_INT32 dims: [1] zero_data: true } }'
)
ITERATIVE = "iterative_sequence: true"
LEVELS = "priority_levels: 3 default_priority_level: 2"
REJECT, REJECT_FIXED, DELAY, NO_TIMEOUT, SHORT, SHORTEST = range(1, 7)
"""The levels of the model `policies`."""
OVERRIDE = "allow_timeout_override: true"
POLICIES = {
    REJECT: f"default_timeout_microseconds: {TIMEOUT_US} {OVERRIDE}",
    REJECT_FIXED: f"default_timeout_microseconds: {TIMEOUT_US}",
    DELAY: f"timeout_action: DELAY default_timeout_microseconds: {TIMEOUT_US} {OVERRIDE}",
    NO_TIMEOUT: OVERRIDE,
    SHORTEST: "max_queue_size: 1",
}

SEQUENCES: dict[str, Model] = {
    "direct": wide(sequences("direct { }")),
    "direct_one": witness(0, sequences("direct { }")),
    "direct_two": witness(2, f"{TWICE} {sequences('direct { }')}"),
    "direct_full": witness(
        4,
        sequences(
            f"direct {{ max_queue_delay_microseconds: {DELAY_US} minimum_slot_utilization: 0.75 }}"
        ),
    ),
    "oldest": witness(4, sequences("oldest { max_candidate_sequences: 4 }")),
    "oldest_one": witness(0, sequences("oldest { max_candidate_sequences: 1 }")),
    "oldest_pairs": witness(
        4,
        sequences(
            "oldest { max_candidate_sequences: 4 preferred_batch_size: 2"
            f" max_queue_delay_microseconds: {DELAY_US} }}"
        ),
    ),
    "oldest_stream": (
        REPEAT,
        config(0, [ONE], [OUTPUT0], f"{STREAM} {sequences('oldest { }', control('START'))}"),
    ),
    "idle": witness(0, sequences("direct { }", idle_us=IDLE_SHORT_US)),
    "controls": witness(
        4,
        sequences(
            "direct { }",
            control("START", "bool_false_true: [false, true]"),
            control("END", "fp32_false_true: [0, 1]"),
            control("READY", "int32_false_true: [-3, 7]"),
            correlation("INT64"),
        ),
    ),
    "id_uint32": witness(0, sequences("direct { }", correlation("UINT32"))),
    "id_text": witness(0, sequences("direct { }", correlation("STRING"))),
    "no_id": witness(0, sequences("direct { }", control("START"))),
    "iterate": (
        ITERATE,
        config(
            0,
            [ONE, *DIALS],
            [FACTS, OUTPUT0],
            sequences(f"direct {{ }} {ITERATIVE}", control("START")),
        ),
    ),
    "iterate4": (
        ITERATE,
        config(
            4,
            [ONE, *DIALS],
            [FACTS, OUTPUT0],
            sequences(f"oldest {{ max_candidate_sequences: 4 }} {ITERATIVE}", control("START")),
        ),
    ),
    "stateful": (
        STATEFUL,
        config(0, [ONE], [OUTPUT0, OUTPUT1], sequences(f"direct {{ }} {STATE}", control("START"))),
    ),
}

QUEUES: dict[str, Model] = {
    "plain": witness(0),
    "plain4": witness(4),
    "batched": wide(queue()),
    "preferred": witness(
        8, queue(f"preferred_batch_size: [2, 4] max_queue_delay_microseconds: {DELAY_US}")
    ),
    "levels": wide(queue(LEVELS)),
    "policies": witness(
        4,
        queue(
            f"priority_levels: {SHORTEST} default_priority_level: {SHORT}"
            + "".join(
                f" priority_queue_policy {{ key: {level} value {{ {policy} }} }}"
                for level, policy in POLICIES.items()
            ),
            "max_queue_size: 2",
        ),
    ),
    "ordered": witness(0, f"{TWICE} {queue('preserve_ordering: true')}"),
    "cached": witness(4, CACHE),
    "cached_batched": witness(4, f"{queue()} {CACHE}"),
}

STEPS: dict[str, Model] = {
    "increase": (INCREASE, config(0, [ONE], [OUTPUT0, OUTPUT1])),
    "increase4": (
        INCREASE,
        config(
            4,
            [ONE],
            [tensor("OUTPUT0", "INT32", "1", 'label_filename: "labels.txt"'), OUTPUT1],
            queue(),
        ),
    ),
    "column": (
        INCREASE,
        config(
            0,
            [tensor("INPUT0", "INT32", "-1, 1")],
            [tensor(f"OUTPUT{i}", "INT32", "-1, 1") for i in (0, 1)],
        ),
    ),
    "pair": (
        WITNESS,
        config(
            0,
            [ONE, tensor("INPUT1", "INT32", "1", "optional: true"), *DIALS],
            [FACTS, OUTPUT0, OUTPUT1],
        ),
    ),
    "repeat": (REPEAT, config(0, [ONE], [OUTPUT0], STREAM)),
}

UNCACHEABLE: dict[str, Model] = {
    "cached_sequences": witness(0, f"{sequences('direct { }')} {CACHE}"),
    "cached_stream": (REPEAT, config(0, [ONE], [OUTPUT0], f"{STREAM} {CACHE}")),
}
"""Models that cannot be loaded."""

MODELS = {**SEQUENCES, **QUEUES, **STEPS, **UNCACHEABLE}
LABELS = "zero\none\n"
ROWS_MAX = {
    name: int(text.split("max_batch_size: ")[1].split()[0])
    for name, text in {
        **{name: text for name, (_, text) in MODELS.items()},
        **ENSEMBLES,
    }.items()
}
"""Model or ensemble name -> its largest batch; 0 where requests have no batch dimension."""


def write_repository(directory: Path) -> None:
    """Write every model and ensemble, the faulty ones too, under `directory`."""
    for name, (source, _) in MODELS.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "1" / "model.py").write_text(source)
    for name in {**ENSEMBLES, **FAULTY}:
        (directory / name / "1").mkdir(parents=True)
    texts = {name: text for name, (_, text) in MODELS.items()} | ENSEMBLES | FAULTY
    for name, text in texts.items():
        (directory / name / "config.pbtxt").write_text(text)
    (directory / "increase4" / "labels.txt").write_text(LABELS)
