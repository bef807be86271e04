"""Every row of the validation tables of the schedulers."""

from __future__ import annotations

import pytest

from tests.protocol.config_faults import BASE, TWO_GPUS, checked, fault_of

START = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }"
STATE = 'input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [2, -1]'

DYNAMIC = [
    (
        "preferred_batch_size: [4, 0]",
        "preferred_batch_size must be positive, got 0",
    ),
    (
        "preferred_batch_size: 9",
        "preferred_batch_size must not exceed max_batch_size 8, got 9",
    ),
    ("priority_levels: 3", "default_priority_level must be from 1 to 3, got 0"),
    (
        "priority_levels: 3 default_priority_level: 4",
        "default_priority_level must be from 1 to 3, got 4",
    ),
    (
        "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 2 }",
        "a key of priority_queue_policy must be from 1 to 1, got 2",
    ),
    (
        "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 0 }",
        "a key of priority_queue_policy must be from 1 to 1, got 0",
    ),
    (
        "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
        "preserve_ordering works with one priority level only, got priority_levels 2",
    ),
    (
        (
            "preserve_ordering: true"
            " default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"
        ),
        "preserve_ordering does not work with the timeout_action DELAY",
    ),
    (
        (
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1"
            " priority_queue_policy"
            " { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }"
        ),
        "preserve_ordering does not work with the timeout_action DELAY",
    ),
]

SEQUENCE = [
    (f"control_input {{ {START} }}", "a control_input has no name"),
    (
        (
            f'control_input {{ name: "C" {START} control {{ kind: CONTROL_SEQUENCE_END'
            " int32_false_true: [0, 1] } }"
        ),
        "control_input 'C' stands for several controls, expected one",
    ),
    (
        f'control_input {{ name: "C" {START} }} control_input {{ name: "C" {START} }}',
        "control_input 'C' stands for several controls, expected one",
    ),
    (
        f'control_input {{ name: "C" {START} }} control_input {{ name: "D" {START} }}',
        "CONTROL_SEQUENCE_START must have one tensor, got 'C' and 'D'",
    ),
    (
        'control_input { name: "C" control { kind: CONTROL_SEQUENCE_END } }',
        (
            "CONTROL_SEQUENCE_END: expected one of int32_false_true, fp32_false_true,"
            " bool_false_true, got none"
        ),
    ),
    (
        'control_input { name: "C" control { int32_false_true: [0, 1] fp32_false_true: [0, 1] } }',
        (
            "CONTROL_SEQUENCE_START: expected one of int32_false_true, fp32_false_true,"
            " bool_false_true, got int32_false_true and fp32_false_true"
        ),
    ),
    (
        'control_input { name: "C" control { bool_false_true: true } }',
        "CONTROL_SEQUENCE_START: bool_false_true must have 2 entries, got 1",
    ),
    (
        'control_input { name: "C" control { fp32_false_true: [0, 1, 2] } }',
        "CONTROL_SEQUENCE_START: fp32_false_true must have 2 entries, got 3",
    ),
    (
        (
            'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID'
            " data_type: TYPE_INT32 int32_false_true: [0, 1] } }"
        ),
        "CONTROL_SEQUENCE_CORRID has no false and true values, got int32_false_true",
    ),
    (
        (
            'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID'
            " data_type: TYPE_FP32 } }"
        ),
        (
            "CONTROL_SEQUENCE_CORRID: data_type must be one of TYPE_UINT64, TYPE_INT64,"
            " TYPE_UINT32, TYPE_INT32, TYPE_STRING, got TYPE_FP32"
        ),
    ),
    (
        'control_input { name: "C" control { kind: 9 } }',
        "control has the unknown value 9",
    ),
    (
        "oldest { preferred_batch_size: -1 }",
        "oldest: preferred_batch_size must be positive, got -1",
    ),
    (
        "oldest { preferred_batch_size: 9 }",
        "oldest: preferred_batch_size must not exceed max_batch_size 8, got 9",
    ),
    *(
        (
            f"direct {{ minimum_slot_utilization: {value} }}",
            f"direct: minimum_slot_utilization must be in (0.0, 1.0], got {value}",
        )
        for value in ("-0.5", "1.5", "nan")
    ),
    (
        f"state {{ {STATE} use_growable_memory: true use_same_buffer_for_input_output: true }}",
        "state 'S': use_growable_memory requires KIND_GPU, got KIND_CPU",
    ),
    (
        f"state {{ {STATE} use_growable_memory: true }}",
        "state 'S': use_growable_memory requires use_same_buffer_for_input_output",
    ),
    (
        f"state {{ {STATE} initial_state {{}} initial_state {{}} }}",
        "initial_state of 'S': expected zero or one, got 2",
    ),
    (
        f"state {{ {STATE} initial_state {{ data_type: TYPE_FP32 }} }}",
        "initial_state of 'S' has no name",
    ),
    (
        f'state {{ {STATE} initial_state {{ name: "i" data_type: TYPE_INT8 }} }}',
        "initial_state of 'S': data_type must be that of the state, TYPE_FP32, got TYPE_INT8",
    ),
    (f"state {{ {STATE} }} state {{ {STATE} }}", "state input_name 'S' is given twice"),
    (
        f'state {{ {STATE} initial_state {{ name: "i" data_type: TYPE_FP32 dims: 2 }} }}',
        "initial_state of 'S': expected 2 dims as the state has, got 1",
    ),
    (
        f'state {{ {STATE} initial_state {{ name: "i" data_type: TYPE_FP32 dims: [2, -1] }} }}',
        "initial_state of 'S': dims must be fixed, got [2,-1]",
    ),
    (
        f'state {{ {STATE} initial_state {{ name: "i" data_type: TYPE_FP32 dims: [3, 1] }} }}',
        "initial_state of 'S': expected the dim 2 of the state, got 3",
    ),
    (
        f'state {{ {STATE} initial_state {{ name: "i" data_type: TYPE_FP32 dims: [2, 1] }} }}',
        "initial_state of 'S': expected zero_data or data_file, got neither",
    ),
]


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_batching { preferred_batch_size: [1, 8] preserve_ordering: true }",
        ("dynamic_batching { priority_levels: 2 default_priority_level: 2"
        " priority_queue_policy { key: 1 value { timeout_action: DELAY } } }"),
        ("dynamic_batching { preserve_ordering: true"
        " default_queue_policy { timeout_action: DELAY } }"),
        f'sequence_batching {{ control_input {{ name: "S" {START} }} }}',
        "sequence_batching { direct { minimum_slot_utilization: 1 } }",
        "sequence_batching { oldest { max_candidate_sequences: 4 } }",
        (f"sequence_batching {{ state {{ {STATE} initial_state"
        ' { name: "i" data_type: TYPE_FP32 dims: [2, 9] zero_data: true } } }'),
    ],
)  # fmt: skip
def test_a_sound_scheduler_passes(text: str) -> None:
    checked(BASE + text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f"dynamic_batching {{ {part} }}", f"dynamic_batching: {m}") for part, m in DYNAMIC),
        *((f"sequence_batching {{ {part} }}", f"sequence_batching: {m}") for part, m in SEQUENCE),
    ],
)
def test_a_fault_names_the_scheduler_and_the_rule(text: str, message: str) -> None:
    assert fault_of(BASE + text) == message


def test_growable_state_is_fine_on_a_gpu() -> None:
    state = f"{STATE} use_growable_memory: true use_same_buffer_for_input_output: true"
    checked(BASE + f"sequence_batching {{ state {{ {state} }} }}", TWO_GPUS)
