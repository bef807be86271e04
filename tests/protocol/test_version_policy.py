"""Only canonical numbers are versions, and the policy picks among those that exist."""

from __future__ import annotations

import pytest

from tritrio.protocol.pb import inference as pb
from tritrio.protocol.version_policy import parse_version, select_versions


@pytest.mark.parametrize(
    ("name", "version"),
    [("0", 0), ("1", 1), ("10", 10), ("9223372036854775807", (1 << 63) - 1)],
)
def test_a_canonical_number_is_a_version(name: str, version: int) -> None:
    assert parse_version(name) == version


@pytest.mark.parametrize(
    "name",
    [
        *["01", "00", "-1", "+1", "1_backup", "1 ", " 1", "1_0", "", "1.0", "0x1", "²", "٣"],
        *["9" * 20, "9223372036854775808", "9" * 10_000, ".ipynb_checkpoints", "latest"],
    ],
)
def test_anything_else_is_no_version(name: str) -> None:
    assert parse_version(name) is None


def latest(count: int) -> pb.ModelVersionPolicy:
    return pb.ModelVersionPolicy(latest=pb.ModelVersionPolicyLatest(num_versions=count))


def specific(*versions: int) -> pb.ModelVersionPolicy:
    return pb.ModelVersionPolicy(specific=pb.ModelVersionPolicySpecific(versions=list(versions)))


@pytest.mark.parametrize(
    ("policy", "selected", "missing"),
    [
        (None, [12], []),
        (pb.ModelVersionPolicy(), [12], []),
        (latest(0), [12], []),
        (latest(1), [12], []),
        (latest(2), [3, 12], []),
        (latest(99), [1, 3, 12], []),
        (pb.ModelVersionPolicy(all=pb.ModelVersionPolicyAll()), [1, 3, 12], []),
        (specific(12, 1, 1), [1, 12], []),
        (specific(3, 9, 2), [3], [2, 9]),
        (specific(), [], []),
    ],
)
def test_a_policy_picks_versions_in_ascending_order(
    policy: pb.ModelVersionPolicy | None, selected: list[int], missing: list[int]
) -> None:
    assert select_versions(policy, [12, 1, 3]) == (selected, missing)


def test_without_versions_nothing_is_selected() -> None:
    assert select_versions(None, []) == ([], [])
    assert select_versions(latest(3), []) == ([], [])
    assert select_versions(specific(1), []) == ([], [1])
