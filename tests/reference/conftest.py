"""Both servers, started once for all tests of this directory."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from .repository import write_repository
from .servers import COMPLETE, Servers, both


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The reference and ours, serving the same repository; both must end well in the end."""
    repository = tmp_path_factory.mktemp("reference") / "models"
    write_repository(repository)
    with both(repository, *COMPLETE) as servers:
        yield servers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what our server printed beside a failure."""
    report = yield
    pair = item.funcargs.get("servers")
    if report.failed and isinstance(pair, Servers):
        report.sections.append(("our server's log", pair.ours.log_tail()))
    return report
