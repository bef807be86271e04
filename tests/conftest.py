"""Runs async tests on trio, on a virtual clock where a test asks for one."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import hypothesis
import pytest
import trio
from trio.testing import MockClock

from tests.backends.processes import forget_others

pytest_plugins = ["tritrio.pytest_plugin"]

hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")  # no test asserts how fast anything is

TEST_LIMIT_S = 3600.0
"""Virtual seconds; a deadlock lets the autojump clock reach it at once, so it fails, not hangs."""
REAL_TEST_LIMIT_S = 60.0
"""Real seconds, for async tests without a virtual clock."""


@pytest.fixture
def autojump_clock() -> MockClock:
    """A clock that jumps to the next deadline whenever every task waits."""
    return MockClock(autojump_threshold=0)


@pytest.fixture(autouse=True)
def _own_processes() -> None:
    """Let each test see the processes it started itself, and no servers of the session."""
    forget_others()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test under `trio.run`, on the test's clock, within a limit."""
    test = pyfuncitem.obj
    names = pyfuncitem._fixtureinfo.argnames
    if not inspect.iscoroutinefunction(test) or "serve_models" in names:
        return None  # the product's own plugin runs the tests of models
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    clock = next((value for value in arguments.values() if isinstance(value, MockClock)), None)
    limit_s = TEST_LIMIT_S if clock is not None else REAL_TEST_LIMIT_S

    async def limited() -> None:
        with trio.fail_after(limit_s):
            await functools.partial(test, **arguments)()

    trio.run(limited, clock=clock)
    return True
