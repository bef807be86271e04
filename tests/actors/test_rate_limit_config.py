"""What validation says about the resources of instance groups."""

from __future__ import annotations

import pytest

from tests.protocol.config_faults import PLAIN, TENSORS, checked, fault_of
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import warnings_of

MODEL = PLAIN + TENSORS


def group_of(*resources: str) -> str:
    listed = " ".join(f"resources {{ {resource} }}" for resource in resources)
    return f"instance_group {{ count: 1 rate_limiter {{ {listed} priority: 2 }} }} "


@pytest.mark.parametrize(
    "groups",
    [
        group_of('name: "R" count: 1', 'name: "R" count: 2'),
        group_of('name: "R" count: 1', 'name: "G" global: true count: 2'),
        group_of('name: "G" global: true count: 1') + group_of('name: "G" global: true count: 2'),
        "instance_group { rate_limiter { } }",
    ],
)
def test_resources_that_can_be_served(groups: str) -> None:
    checked(MODEL + groups)
    assert warnings_of(parse_model_config(MODEL + groups, file="c")) == []


def test_a_count_of_none_is_an_error() -> None:
    assert fault_of(MODEL + group_of('name: "Q" count: 1', 'name: "R"')) == (
        "instance_group 'm_0': rate_limiter resource 'R' must have a count of 1 or more, got 0"
    )


@pytest.mark.parametrize(
    ("groups", "group"),
    [
        (group_of('name: "R" count: 1', 'name: "R" count: 1 global: true'), "m_0"),
        (group_of('name: "R" count: 1 global: true') + group_of('name: "R" count: 1'), "m_1"),
    ],
)
def test_a_resource_both_global_and_of_a_device_is_an_error(groups: str, group: str) -> None:
    assert fault_of(MODEL + groups) == (
        f"instance_group '{group}': rate_limiter resource 'R' must be either global or of each "
        "device in the whole model, got both"
    )
