"""Both servers, started once for all tests of this directory."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from .repository import write_repository
from .servers import Servers, start_ours, start_reference, why_no_reference


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The reference and ours, serving the same repository; both must end well in the end."""
    if reason := why_no_reference():
        pytest.skip(f"no reference server: {reason}")
    directory = tmp_path_factory.mktemp("reference")
    repository = directory / "models"
    write_repository(repository)
    reference = start_reference(repository, directory / "reference.log")
    try:
        ours = start_ours(repository, directory / "ours.log")
        try:
            ours.wait_until_ready()
            reference.wait_until_ready()
            yield Servers(reference, ours)
        finally:
            status = ours.stop()
    finally:
        reference.stop()
    assert status == 0, ours.log_tail()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what our server printed beside a failure."""
    report = yield
    both = item.funcargs.get("servers")
    if report.failed and isinstance(both, Servers):
        report.sections.append(("our server's log", both.ours.log_tail()))
    return report
