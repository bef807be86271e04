"""The defaults that a configuration gets, and the instances that follow."""

from __future__ import annotations

import pytest

from tritrio.protocol.config_rules import ConfigContext, instances, normalise
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.pb import inference as pb

CPU_ONLY = ConfigContext()
TWO_GPUS = ConfigContext(gpus=(0, 3))


def normalised(text: str, context: ConfigContext = CPU_ONLY) -> pb.ModelConfig:
    config = parse_model_config(f'name: "m" {text}', file="config.pbtxt")
    before = bytes(config)
    done = normalise(config, context=context)
    assert bytes(config) == before
    assert normalise(done, context=context) == done
    return done


def groups(text: str, context: ConfigContext = CPU_ONLY) -> list[tuple[str, str, int, list[int]]]:
    config = normalised(text, context)
    return [
        (group.name, str(group.kind.proto_name), group.count, group.gpus)
        for group in config.instance_group
    ]


def test_the_version_policy_becomes_the_latest() -> None:
    latest = pb.ModelVersionPolicyLatest(num_versions=1)
    assert normalised("").version_policy == pb.ModelVersionPolicy(latest=latest)
    written = pb.ModelVersionPolicy(all=pb.ModelVersionPolicyAll())
    assert normalised("version_policy { all {} }").version_policy == written


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("max_batch_size: 8 dynamic_batching {}", [8]),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4] }", [2, 4]),
        ("dynamic_batching {}", []),
    ],
)
def test_dynamic_batching_prefers_full_batches(text: str, sizes: list[int]) -> None:
    dynamic = normalised(text).dynamic_batching
    assert dynamic is not None
    assert dynamic.preferred_batch_size == sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("max_batch_size: 8 sequence_batching { oldest {} }", [8]),
        ("max_batch_size: 8 sequence_batching { oldest { preferred_batch_size: 2 } }", [2]),
        ("sequence_batching { oldest {} }", []),
    ],
)
def test_the_oldest_strategy_prefers_full_batches(text: str, sizes: list[int]) -> None:
    sequence = normalised(text).sequence_batching
    assert sequence is not None
    assert sequence.oldest is not None
    assert sequence.oldest.preferred_batch_size == sizes


@pytest.mark.parametrize(("written", "idle_us"), [(0, 1_000_000), (5, 5)])
def test_a_sequence_may_idle_for_one_second(written: int, idle_us: int) -> None:
    text = f"sequence_batching {{ max_sequence_idle_microseconds: {written} }}"
    sequence = normalised(text).sequence_batching
    assert sequence is not None
    assert sequence.max_sequence_idle_microseconds == idle_us


def test_pinned_memory_is_on_unless_it_is_written_off() -> None:
    optimization = normalised("optimization { input_pinned_memory {} }").optimization
    assert optimization is not None
    on, off = (pb.ModelOptimizationPolicyPinnedMemoryBuffer(enable=e) for e in (True, False))
    assert optimization.input_pinned_memory == off
    assert optimization.output_pinned_memory == on
    assert normalised("").optimization == pb.ModelOptimizationPolicy(
        input_pinned_memory=on, output_pinned_memory=on
    )


def test_an_ensemble_gets_a_version_policy_and_nothing_else() -> None:
    config = normalised('platform: "ensemble" ensemble_scheduling {}')
    assert config.version_policy is not None
    assert config.optimization is None
    assert config.instance_group == []


@pytest.mark.parametrize(
    ("text", "context", "expected"),
    [
        ("", CPU_ONLY, [("m", "KIND_CPU", 1, [])]),
        ("", TWO_GPUS, [("m", "KIND_GPU", 1, [0, 3])]),
        ('backend: "onnxruntime"', CPU_ONLY, [("m", "KIND_CPU", 2, [])]),
        ('backend: "onnxruntime"', TWO_GPUS, [("m", "KIND_GPU", 1, [0, 3])]),
        ('backend: "tensorflow"', CPU_ONLY, [("m", "KIND_CPU", 2, [])]),
        (
            'backend: "onnxruntime" instance_group { count: -1 } instance_group { count: 5 }',
            CPU_ONLY,
            [("m_0", "KIND_CPU", 2, []), ("m_1", "KIND_CPU", 5, [])],
        ),
        (
            'instance_group { name: "g" } instance_group { kind: KIND_MODEL }',
            TWO_GPUS,
            [("g", "KIND_GPU", 1, [0, 3]), ("m_1", "KIND_MODEL", 1, [])],
        ),
        ("instance_group { gpus: 3 }", TWO_GPUS, [("m_0", "KIND_GPU", 1, [3])]),
        ("instance_group { gpus: [0, 1] }", TWO_GPUS, [("m_0", "KIND_CPU", 1, [0, 1])]),
        ("instance_group { kind: KIND_GPU }", CPU_ONLY, [("m_0", "KIND_GPU", 1, [])]),
        ("instance_group { kind: KIND_GPU }", TWO_GPUS, [("m_0", "KIND_GPU", 1, [0, 3])]),
    ],
)
def test_instance_groups_get_name_kind_count_and_gpus(
    text: str, context: ConfigContext, expected: list[tuple[str, str, int, list[int]]]
) -> None:
    assert groups(text, context) == expected


def test_a_backend_may_prefer_a_kind_and_a_count() -> None:
    context = ConfigContext(
        gpus=(0,), preferred_kind=pb.ModelInstanceGroupKind.CPU, preferred_count=3
    )
    assert groups("", context) == [("m", "KIND_CPU", 3, [])]
    assert groups("instance_group { count: 1 }", context) == [("m_0", "KIND_GPU", 1, [0])]
    assert groups('backend: "onnxruntime"', context) == [("m", "KIND_CPU", 3, [])]


def test_instances_are_named_after_their_group() -> None:
    assert [each.name for each in instances(normalised(""))] == ["m_0"]
    text = 'instance_group { count: 2 } instance_group { name: "g" count: 1 }'
    assert [each.name for each in instances(normalised(text))] == ["m_0_0", "m_0_1", "g_0"]


def test_a_group_on_gpus_has_its_count_on_each() -> None:
    config = normalised("instance_group { count: 2 } instance_group { kind: KIND_CPU }", TWO_GPUS)
    assert [(instance.name, instance.device_id) for instance in instances(config)] == [
        ("m_0_0", 0),
        ("m_0_1", 0),
        ("m_0_0", 3),
        ("m_0_1", 3),
        ("m_1_0", 0),
    ]
