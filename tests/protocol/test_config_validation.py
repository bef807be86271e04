"""Every row of the validation tables: what is refused, and what the refusal says."""

from __future__ import annotations

import pytest

from tests.protocol.config_faults import BASE, CPU_ONLY, PLAIN, TWO_GPUS, checked, fault_of
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import INSTANCES_MAX, validate, warnings_of
from tritrio.protocol.errors import RequestError
from tritrio.protocol.metrics_config import FIRST_RESPONSE_FAMILY
from tritrio.protocol.pb import inference as pb


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        PLAIN,
        'name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime"',
        'name: "m" platform: "pytorch_libtorch"',
        'name: "m" platform: "libtorch" backend: "pytorch"',
        'name: "m" platform: "torch_aoti"',
        BASE + "response_cache { enable: true }",
        BASE + "response_cache {} model_transaction_policy { decoupled: true }",
        ('name: "m" backend: "b" max_batch_size: 1 input { name: "x" data_type: TYPE_BOOL dims: 1'
        " reshape { shape: [] } }"),
        PLAIN + 'input { name: "x" data_type: TYPE_BOOL dims: [2, -1, 6] reshape'
        " { shape: [2, -1, 3, 2] } }",
        PLAIN + 'input { name: "x" data_type: TYPE_BOOL dims: [1,2,3] format: FORMAT_NCHW }',
        ('name: "m" platform: "tensorrt_plan" input { name: "x" data_type: TYPE_INT32 dims: 3'
        ' is_shape_tensor: true } instance_group { profile: "0" }'),
        BASE + 'batch_input { target_name: "E" source_input: "IN" data_type: TYPE_INT32 }',
        BASE + 'batch_output { target_name: "OUT" source_input: "IN" }',
        BASE + "instance_group { kind: KIND_MODEL count: 3 }",
    ],
)  # fmt: skip
def test_a_sound_configuration_passes(text: str) -> None:
    checked(text)


GENERAL = [
    ('name: "m"', "one of platform and backend is required"),
    ('name: "m" platform: "caffe"', "platform 'caffe' is unknown"),
    (
        'name: "m" platform: "onnxruntime_onnx" backend: "python"',
        "platform 'onnxruntime_onnx' belongs to backend 'onnxruntime', got backend 'python'",
    ),
    (PLAIN + "max_batch_size: -1", "max_batch_size must not be negative, got -1"),
]

ENSEMBLE = [
    (
        PLAIN + "ensemble_scheduling {}",
        "ensemble_scheduling requires platform 'ensemble', got platform ''",
    ),
    ('name: "m" platform: "ensemble"', "platform 'ensemble' requires ensemble_scheduling"),
    (
        PLAIN + 'platform: "ensemble" ensemble_scheduling {}',
        "an ensemble has no backend, got backend 'python'",
    ),
    *(
        (
            f'name: "m" platform: "ensemble" ensemble_scheduling {{}} {field} {{}}',
            f"an ensemble must not have {field}",
        )
        for field in ("instance_group", "optimization", "model_warmup")
    ),
]

CACHE_AND_METRICS = [
    (
        "sequence_batching {} response_cache { enable: true }",
        "the response cache does not work with sequence_batching; disable response_cache",
    ),
    (
        "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        (
            "the response cache does not work with the decoupled transaction policy"
            "; disable response_cache"
        ),
    ),
    (
        "model_metrics { metric_control {} }",
        "model_metrics: metric_control 0 has no metric_identifier",
    ),
    (
        "model_metrics { metric_control { metric_identifier {} } }",
        "model_metrics: metric_control 0: its metric_identifier has no family",
    ),
    (
        'model_metrics { metric_control { metric_identifier { family: "f" } } }',
        "model_metrics: metric_control 0 has no histogram_options",
    ),
    (
        (
            'model_metrics { metric_control { metric_identifier { family: "f" }'
            " histogram_options {} } }"
        ),
        "model_metrics: metric_control 0: its histogram_options have no buckets",
    ),
    *(
        (
            (
                'model_metrics { metric_control { metric_identifier { family: "f" }'
                f" histogram_options {{ buckets: [{buckets}] }} }} }}"
            ),
            (
                "model_metrics: metric_control 0: expected buckets that are finite and ascend, "
                f"got [{buckets}]"
            ),
        )
        for buckets in ("2.0, 1.0", "1.0, 1.0", "1.0, inf", "nan")
    ),
]

X = 'name: "x" data_type: TYPE_FP32'
TENSOR = [
    ("data_type: TYPE_FP32 dims: 1", "{} 0 has no name"),
    ('name: "x" dims: 1', "{} 'x' has no data_type"),
    ('name: "x" data_type: 77 dims: 1', "{} 'x' has the unknown data_type 77"),
    (X, "{} 'x' has no dims"),
    (f"{X} dims: [1, 0]", "{} 'x': each of its dims must be at least 1 or else -1, got 0"),
    (f"{X} dims: -2", "{} 'x': each of its dims must be at least 1 or else -1, got -2"),
    (
        f"{X} dims: 1 reshape {{ shape: [] }}",
        "{} 'x': its reshape is empty, but a model without batching cannot take a scalar",
    ),
    (
        f"{X} dims: 1 reshape {{ shape: 0 }}",
        "{} 'x': each of its reshape dims must be at least 1 or else -1, got 0",
    ),
    (
        f"{X} dims: [2, 3] reshape {{ shape: 5 }}",
        (
            "{} 'x': dims and reshape must have the same size,"
            " but its dims are [2,3] and its reshape is [5]"
        ),
    ),
    (
        f"{X} dims: [2, -1, 6] reshape {{ shape: [4, -1, 3] }}",
        (
            "{} 'x': dims and reshape must have the same size,"
            " but its dims are [2,-1,6] and its reshape is [4,-1,3]"
        ),
    ),
    (
        f"{X} dims: [-1, 6] reshape {{ shape: 6 }}",
        (
            "{} 'x': dims and reshape must have as many variable dims,"
            " but its dims are [-1,6] and its reshape is [6]"
        ),
    ),
    (f"{X} dims: 1 is_shape_tensor: true", "{} 'x': is_shape_tensor is for TensorRT models only"),
    (
        f"{X} dims: [1, 2, 3] is_non_linear_format_io: true",
        "{} 'x': is_non_linear_format_io is for TensorRT models only",
    ),
]

FORMATS = [
    (PLAIN + f"input {{ {X} dims: [2, 3] format: FORMAT_NHWC }}",
     "input 'x': FORMAT_NHWC requires 3 dims, got [2,3]"),
    (PLAIN + f"input {{ {X} dims: 2 format: FORMAT_NCHW }}",
     "input 'x': FORMAT_NCHW requires 3 dims, got [2]"),
    (PLAIN + f"input {{ {X} dims: 2 format: 5 }}", "input 'x' format has the unknown value 5"),
    ('name: "m" backend: "tensorrt" ' + f"input {{ {X} dims: 2 is_non_linear_format_io: true }}",
     "input 'x': is_non_linear_format_io requires 3 dims, got [2]"),
    (PLAIN + f"input {{ {X} dims: 2 }} input {{ {X} dims: 2 }}", "input 'x' is given twice"),
]  # fmt: skip

BATCH_TENSORS = [
    (
        "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 }",
        "batch_input BATCH_ITEM_SHAPE: expected one source_input, got 0",
    ),
    (
        'batch_input { source_input: ["IN", "IN"] data_type: TYPE_FP32 }',
        "batch_input BATCH_ELEMENT_COUNT: expected one source_input, got 2",
    ),
    (
        'batch_input { source_input: "IN" data_type: TYPE_INT64 }',
        (
            "batch_input BATCH_ELEMENT_COUNT: data_type must be TYPE_INT32 or TYPE_FP32,"
            " got TYPE_INT64"
        ),
    ),
    (
        'batch_input { source_input: "NO" data_type: TYPE_INT32 }',
        "batch_input BATCH_ELEMENT_COUNT: source_input 'NO' is no input of the model",
    ),
    ("batch_input { kind: 9 }", "batch_input kind has the unknown value 9"),
    (
        'batch_output { target_name: "OUT" }',
        "batch_output BATCH_SCATTER_WITH_INPUT_SHAPE: expected one source_input, got 0",
    ),
    (
        'batch_output { target_name: "NO" source_input: "IN" }',
        "batch_output BATCH_SCATTER_WITH_INPUT_SHAPE: target_name 'NO' is no output of the model",
    ),
    (
        'batch_output { target_name: ["OUT", "OUT"] source_input: "IN" }',
        "batch_output BATCH_SCATTER_WITH_INPUT_SHAPE: target_name 'OUT' is named twice",
    ),
]

GROUPS = [
    ("kind: KIND_CPU gpus: 0", "KIND_CPU must not have gpus"),
    ("kind: KIND_MODEL gpus: 0", "KIND_MODEL must not have gpus"),
    ("kind: KIND_GPU", "KIND_GPU needs a GPU, and this server has none"),
    ('profile: "0"', "profile is for TensorRT models only"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *GENERAL,
        *ENSEMBLE,
        *FORMATS,
        *((BASE + part, message) for part, message in CACHE_AND_METRICS),
        *(
            (PLAIN + f"{what} {{ {part} }}", message.format(what))
            for what in ("input", "output")
            for part, message in TENSOR
        ),
        *((BASE + part, message) for part, message in BATCH_TENSORS),
        *(
            (PLAIN + f"instance_group {{ {part} }}", f"instance_group 'm_0': {message}")
            for part, message in GROUPS
        ),
    ],
)
def test_a_fault_names_the_field_and_the_rule(text: str, message: str) -> None:
    assert fault_of(text) == message


def test_a_name_is_required() -> None:
    with pytest.raises(RequestError, match="name is required"):
        validate(pb.ModelConfig(backend="python"), context=CPU_ONLY)


def test_instances_are_required() -> None:
    with pytest.raises(RequestError, match="at least one instance_group is required"):
        validate(pb.ModelConfig(name="m", backend="python"), context=CPU_ONLY)


def test_the_instances_of_a_model_are_bounded_over_all_groups_and_gpus() -> None:
    group = f"instance_group {{ kind: KIND_CPU count: {INSTANCES_MAX // 2} }} "
    checked(PLAIN + group * 2)
    assert fault_of(PLAIN + group * 2 + "instance_group { kind: KIND_CPU }") == (
        f"instance_group: expected at most {INSTANCES_MAX} instances, got {INSTANCES_MAX + 1}"
    )
    on_gpus = f"instance_group {{ kind: KIND_GPU gpus: [0, 1] count: {INSTANCES_MAX} }}"
    assert fault_of(PLAIN + on_gpus, TWO_GPUS) == (
        f"instance_group: expected at most {INSTANCES_MAX} instances, got {2 * INSTANCES_MAX}"
    )


def test_a_kind_without_a_name_is_refused() -> None:
    assert fault_of(PLAIN + 'instance_group { name: "g" kind: 9 }') == (
        "instance_group 'g' kind has the unknown value 9"
    )


def test_a_gpu_that_cannot_be_used_is_named_with_those_that_can() -> None:
    checked(PLAIN + "instance_group { kind: KIND_GPU gpus: [0, 1] }", TWO_GPUS)
    assert fault_of(PLAIN + "instance_group { kind: KIND_GPU gpus: [1, 7] }", TWO_GPUS) == (
        "instance_group 'm_0': GPU 7 cannot be used; the usable GPUs are 0, 1, each of compute "
        "capability 6.0 or more"
    )


def test_a_batch_strategy_beside_a_sequence_batcher_is_a_warning() -> None:
    path = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x" } }'
    sequence = parse_model_config(BASE + path + "sequence_batching {}", file="c")
    assert warnings_of(sequence) == [
        (
            "model 'm': TRITON_BATCH_STRATEGY_PATH does not work with sequence_batching"
            "; the default strategy is used"
        )
    ]
    assert warnings_of(parse_model_config(BASE + path, file="c")) == []


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_model_without_inputs_or_outputs_is_a_warning(side: str) -> None:
    config = parse_model_config(BASE, file="c")
    getattr(config, side.removesuffix("s")).clear()
    assert warnings_of(config) == [
        f"model 'm' has no {side}: its configuration names none, and its backend completes none"
    ]


def test_buckets_of_a_family_that_nobody_can_choose_are_said() -> None:
    controls = "".join(
        f'metric_control {{ metric_identifier {{ family: "{family}" }} '
        "histogram_options { buckets: [ 1 ] } }"
        for family in ("nonsense", FIRST_RESPONSE_FAMILY)
    )
    config = parse_model_config(BASE + f"model_metrics {{ {controls} }}", file="c")
    assert warnings_of(config) == [
        (
            "model 'm': model_metrics: the buckets of 'nonsense' cannot be chosen, only those of "
            "nv_inference_first_response_histogram_ms can"
        )
    ]
