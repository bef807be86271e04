"""Models that cannot be loaded, each for a reason of its own."""

from __future__ import annotations

from pathlib import Path

from .cases import Differs
from .life_cycle import OnOneSide, Scenario, Step, get, load, load_grpc, unload
from .life_cycle_files import (
    ECHO,
    PYTHON,
    RAISES,
    TENSORS,
    all_of,
    ensemble,
    model,
    nothing,
    removed,
)

TYPELESS = TENSORS.replace("data_type: TYPE_FP32", "", 1)


def python(changes: str, old: str = "", new: str = "") -> str:
    return PYTHON.replace(old, new) + changes if old else PYTHON + changes


START = (
    'control_input {{ name: "{}" control {{ kind: CONTROL_SEQUENCE_START '
    "int32_false_true: [0, 1] }} }}"
)
SEEN_WHILE_POLLING = {
    "unknown_field": python("nmae: 1"),
    "placeholder": python("max_batch_size: ${n}"),
    "open_brace": python("parameters {"),
    "twice": python('default_model_filename: "a" default_model_filename: "b"'),
    "comma": python("", "[ -1 ]", "[ -1, ]"),
    "wrong_enum": python("", "TYPE_FP32", "TYPE_FLOAT"),
    "other_name": 'name: "another"\n' + PYTHON,
    "negative_batch": python("max_batch_size: -1"),
    "preferred_above": python("max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }"),
    "control_twice": python(
        f"max_batch_size: 4 sequence_batching {{ {START.format('A')} {START.format('B')} }}"
    ),
    "ensemble_groups": ensemble("no_such_model", more="instance_group { count: 1 }"),
    "unmapped": ensemble("no_such_model").replace('value: "INPUT0"', 'value: "X"'),
}
FAULTS_OF_VERSIONS = {
    "negative_batch",
    "preferred_above",
    "control_twice",
    "ensemble_groups",
    "unmapped",
}
"""Those of them that we see once the versions are known."""
SEEN_WHILE_LOADING = {
    "no_dims": python("", "dims: [ -1 ]", ""),
    "zero_dims": python("", "[ -1 ]", "[ 0 ]"),
    "no_type": 'backend: "python"\n' + TYPELESS,
    "wrong_reshape": python("", "dims: [ -1 ]", "dims: [ 4 ] reshape { shape: [ 3 ] }"),
    "on_gpu": python("instance_group { kind: KIND_GPU }"),
}
RAISING = {
    "raises": RAISES,
    "no_class": "x = 1\n",
    "syntax": "def\n",
    "raises_later": ECHO.replace(
        "    def execute", "    def initialize(self, args):\n        1 / 0\n\n    def execute"
    ),
}


SECOND = "second"
"""The other repository of both servers, beside the first."""


def _in_both(repository: Path) -> None:
    for place in (repository, repository.parent / SECOND):
        model("in_both")(place)


def _entry(name: str, reference: str, ours: str) -> OnOneSide:
    """Index entries of a failed model; an empty version is none, and no reason is no entry."""
    return OnOneSide((f"{name}{reference}",), (f"{name}{ours}",), "load-faults")


WHOLE = " UNAVAILABLE with a reason"
"""An entry for a model of which no version is known."""
VERSION = f"/1{WHOLE}"
AFTER_POLLING = {
    name: VERSION if name in FAULTS_OF_VERSIONS else WHOLE for name in SEEN_WHILE_POLLING
}


def _steps(name: str, expected: int | Differs = 400, after: OnOneSide | None = None) -> list[Step]:
    return [
        Step(f"load of {name}", load(name), expected, after=after, models=(name,)),
        Step(f"unload of {name}", unload(name), 200, after=after, models=(name,)),
    ]


SCENARIOS = [
    Scenario(
        "faults seen while polling",
        tuple(SEEN_WHILE_POLLING),
        all_of(*(model(name, config) for name, config in SEEN_WHILE_POLLING.items())),
        [
            step
            for name, ours in AFTER_POLLING.items()
            for step in _steps(name, Differs(500, 400, "load-faults"), after=_entry(name, "", ours))
        ],
    ),
    Scenario(
        "faults seen while loading",
        tuple(SEEN_WHILE_LOADING),
        all_of(*(model(name, config) for name, config in SEEN_WHILE_LOADING.items())),
        [step for name in SEEN_WHILE_LOADING for step in _steps(name)],
    ),
    Scenario(
        "faults of other kinds",
        ("no_backend", "in_circle_a", "in_circle_b", "no_version", "not_selected"),
        all_of(
            model("no_backend", TENSORS + 'backend: "no_such_backend"'),
            model("in_circle_a", ensemble("in_circle_b")),
            model("in_circle_b", ensemble("in_circle_a")),
            model("no_version", versions=()),
            model("not_selected", PYTHON + "version_policy { specific { versions: 7 } }"),
        ),
        [
            *_steps("no_backend", after=_entry("no_backend", VERSION, WHOLE)),
            *_steps("in_circle_a", after=_entry("in_circle_a", "", WHOLE)),
            *_steps("in_circle_b", after=_entry("in_circle_b", "", WHOLE)),
            *_steps("no_version", after=OnOneSide((), (f"no_version{WHOLE}",), "load-faults")),
            *_steps("not_selected", after=OnOneSide((), (f"not_selected{WHOLE}",), "load-faults")),
        ],
    ),
    Scenario(
        "two repositories",
        ("in_both", "in_second"),
        all_of(_in_both, lambda repository: model("in_second")(repository.parent / SECOND)),
        [
            Step(
                "live with a model in two repositories",
                get("health/live"),
                200,
                after=OnOneSide((f"in_both{WHOLE}",), ("in_both",), "index-listed"),
            ),
            Step("load of a model in two repositories", load("in_both"), 500),
            Step("load of it over gRPC", load_grpc("in_both"), "INTERNAL"),
            Step(
                "load of what is left of it",
                load("in_both"),
                200,
                edit=lambda repository: removed("in_both")(repository.parent / SECOND),
            ),
            Step("load of a model in the second repository", load("in_second"), 200),
        ],
    ),
    Scenario(
        "additions",
        ("added",),
        nothing,
        [
            Step("load of what is not there yet", load("added"), 500),
            Step(
                "live after a directory was added",
                get("health/live"),
                200,
                edit=model("added", ensemble("no_such_model"), None),
            ),
            Step(
                "load of what was added",
                load("added"),
                400,
                after=_entry("added", "", WHOLE),
            ),
        ],
    ),
    Scenario(
        "faults of models",
        (*RAISING, "good_after"),
        all_of(
            *(model(name, PYTHON, source) for name, source in RAISING.items()),
            model("good_after"),
        ),
        [
            *(step for name in RAISING for step in _steps(name)),
            Step("load of a good model beside", load("good_after"), 200),
            Step("load of a bad model over gRPC", load_grpc("raises"), "INVALID_ARGUMENT"),
            Step(
                "load of a good version in place of a bad one",
                load("raises"),
                200,
                edit=all_of(model("raises", versions=("2",)), removed("raises/1")),
                after=OnOneSide((f"raises{VERSION}",), (), "index-versions"),
            ),
        ],
    ),
]
