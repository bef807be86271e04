"""Which versions of a model are served.

Source: Triton `ModelVersionPolicy`; only canonical numbers name a version.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .pb.inference import ModelVersionPolicy

VERSION_MAX: Final = (1 << 63) - 1
"""Versions travel as int64 in a configuration."""
_DIGITS_MAX: Final = len(str(VERSION_MAX))


def parse_version(name: str) -> int | None:
    """Return the version a directory name stands for, or None if it is no version.

    Only the canonical spelling counts: digits without a zero in front ("0" itself is one).
    """
    if not (name.isascii() and name.isdigit()) or len(name) > _DIGITS_MAX:
        return None
    if name[0] == "0" and name != "0":
        return None
    version = int(name)
    return version if version <= VERSION_MAX else None


def select_versions(
    policy: ModelVersionPolicy | None, available: Collection[int]
) -> tuple[list[int], list[int]]:
    """Return the versions to serve and the ones that were named but do not exist.

    Args:
      policy: None, and a policy without a choice, is the latest version alone.
      available: The versions there are.

    Returns:
      Both lists in ascending order, without duplicates.
    """
    if policy is not None and policy.all is not None:
        return sorted(set(available)), []
    if policy is not None and policy.specific is not None:
        wanted = set(policy.specific.versions)
        return sorted(wanted.intersection(available)), sorted(wanted.difference(available))
    # `latest {}` leaves the number at 0, which stands for its default.
    latest = None if policy is None else policy.latest
    count = (latest.num_versions if latest is not None else 0) or 1
    return sorted(set(available))[-count:], []
