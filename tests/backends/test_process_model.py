"""Python models in a process of their own: what they can do, and what they cannot do to others."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

from tests.backends.builders import (
    config_of,
    error_of,
    execute,
    floats,
    outputs_of,
    request_of,
    write_model,
)
from tests.backends.processes import children_of, descriptors
from tritrio.backends import process_model
from tritrio.backends.base import Batch, DeviceFaultError, InstancePlace, SaysReady
from tritrio.backends.process_model import ProcessModelInstance
from tritrio.backends.python_model import PythonBackend
from tritrio.protocol.errors import RequestError

MODEL = """
import logging, os, signal, sys, threading, time
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
{body}
"""
ECHO = """
return [
    pb_utils.InferenceResponse([
        pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy())])
    for r in requests]
"""

THE_LINK = """
import socket, stat
for fd in range(3, 20):
    if not os.path.exists(f"/proc/self/fd/{fd}") or not stat.S_ISSOCK(os.fstat(fd).st_mode):
        continue
    link = socket.socket(fileno=os.dup(fd))
"""

Make = Callable[..., ProcessModelInstance]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Loads models whose `execute` is the given code; in the end nothing of them is left."""
    made: list[ProcessModelInstance] = []

    def load(body: str = ECHO, code: str = MODEL) -> ProcessModelInstance:
        source = write_model(tmp_path, code.format(body=indent(body, " " * 8)))
        config = config_of(
            [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], EXECUTION_MODE="process"
        )
        instance = PythonBackend().create_instance(source, config, InstancePlace("m_0_0"))
        assert isinstance(instance, ProcessModelInstance)
        made.append(instance)
        instance.load()
        return instance

    before = descriptors(), threading.active_count()
    yield load
    while made:
        made.pop().unload()
    assert descriptors() <= before[0]
    assert threading.active_count() <= before[1]  # of other tests, some may have ended meanwhile
    assert children_of(os.getpid()) == []


def test_a_model_executes_in_another_process_with_its_arguments(make: Make) -> None:
    instance = make(
        "assert self.args['model_instance_name'] == 'm_0_0'\n"
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', "
        "np.array([os.getpid()], np.float32))]) for _ in requests]"
    )
    (response,) = execute(instance, request_of(floats(1)))
    assert [np.float32(pid) for pid in children_of(os.getpid())] == outputs_of(response)["OUTPUT0"]


@pytest.mark.parametrize("count", [0, 1, 1000, 100_000, 2_000_000])
def test_tensors_of_any_size_go_there_and_back(make: Make, count: int) -> None:
    instance = make()
    arrays = [np.arange(count, dtype=np.float32) + number for number in range(3)]
    responses = execute(instance, *[request_of(array) for array in arrays])
    for response, array in zip(responses, arrays, strict=True):
        assert outputs_of(response)["OUTPUT0"].tobytes() == array.tobytes()


def test_a_model_may_write_into_a_large_input_and_the_request_stays_as_it_was(make: Make) -> None:
    instance = make(
        "array = pb_utils.get_input_tensor_by_name(requests[0], 'INPUT0').as_numpy()\n"
        "array += 1\n" + ECHO
    )
    request = request_of(np.zeros(100_000, np.float32))
    (response,) = execute(instance, request)
    assert outputs_of(response)["OUTPUT0"].tolist() == [1.0] * 100_000
    assert not request.inputs["INPUT0"].array.any()


def test_a_fault_of_the_model_is_an_error_with_its_place_and_the_process_lives_on(
    make: Make,
) -> None:
    instance = make("if requests[0].request_id() == 'bad': raise ValueError('no')\n" + ECHO)
    for _ in range(2):
        (response,) = execute(instance, request_of(floats(1), request_id="bad"))
        assert error_of(response) == (
            "INTERNAL: model instance 'm_0_0': execute raised ValueError: no "
            "(at 1/model.py:9 in execute)"
        )
        (response,) = execute(instance, request_of(np.array([2], np.float32)))
        assert outputs_of(response)["OUTPUT0"].tolist() == [2]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process was killed by SIGKILL"),
        ("signal.raise_signal(signal.SIGTERM)", "its process was killed by SIGTERM"),
        (
            "import ctypes; ctypes.string_at(0)",
            "its process was killed by SIGSEGV",
        ),
        ("os.abort()", "its process was killed by SIGABRT"),
        ("os._exit(3)", "its process ended with exit code 3"),
        ("os._exit(0)", "its process ended with exit code 0"),
        (
            (
                f"threading.Thread(target=time.sleep, args=(60,), daemon=False).start()\n{THE_LINK}"
                "    link.shutdown(socket.SHUT_RDWR)\ntime.sleep(60)"
            ),
            "its process was killed by SIGKILL",
        ),
    ],
)
def test_a_process_that_ends_is_a_fault_of_the_device_that_says_how(
    make: Make, body: str, fault: str
) -> None:
    instance = make(body)
    with pytest.raises(DeviceFaultError, match=f"^{fault}$") as raised:
        instance.execute(Batch([request_of(floats(1))]))
    assert raised.value.begun
    assert children_of(os.getpid()) == []
    with pytest.raises(DeviceFaultError, match=f"^{fault}$") as raised:
        instance.execute(Batch([request_of(floats(1))]))
    assert not raised.value.begun


def test_sys_exit_is_a_fault_of_one_request(make: Make) -> None:
    instance = make("sys.exit(3)")
    (response,) = execute(instance, request_of(floats(1)))
    assert "execute raised SystemExit: 3" in error_of(response)


def test_a_process_that_ended_in_between_never_began_the_next_batch(make: Make) -> None:
    instance = make()
    instance.kill()
    assert instance._process is not None
    select.select([instance._process._handle], [], [])  # until all of its threads have ended
    with pytest.raises(DeviceFaultError, match="killed by SIGKILL") as raised:
        instance.execute(Batch([request_of(floats(1))]))
    assert not raised.value.begun


def test_a_process_that_hangs_can_be_killed_from_elsewhere(make: Make) -> None:
    instance = make("time.sleep(1000)")
    killer = threading.Timer(0.05, instance.kill)
    killer.start()
    with pytest.raises(DeviceFaultError, match="killed by SIGKILL"):
        instance.execute(Batch([request_of(floats(1))]))
    killer.join()
    instance.kill()  # later than needed


def test_children_of_the_model_end_with_it(make: Make) -> None:
    instance = make(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', "
        "np.array([child.pid], np.float32))])]"
    )
    (response,) = execute(instance, request_of(floats(1)))
    pid = int(outputs_of(response)["OUTPUT0"][0])
    assert Path(f"/proc/{pid}").exists()
    instance.unload()
    for _ in range(1000):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
            break
    else:
        pytest.fail("the child goes on")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import os\nos._exit(7)",
            "loading model instance 'm_0_0' failed: its process ended with exit code 7",
        ),
        (
            "import no_such_thing",
            (
                "model 'm' version 1: importing model.py raised ModuleNotFoundError: No module "
                "named 'no_such_thing' (at 1/model.py:3 in <module>)"
            ),
        ),
    ],
)
def test_a_load_that_fails_says_why(make: Make, code: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        make(code=code)
    assert raised.value.message == message


IS_READY = "{model}    async def is_ready(self):\n        return {answer}\n"


@pytest.mark.parametrize("answer", [True, False])
def test_a_model_in_a_process_says_whether_it_is_ready(make: Make, answer: bool) -> None:
    instance = make(code=IS_READY.format(model=MODEL, answer=answer))
    assert isinstance(instance, SaysReady)
    assert (instance.says_ready, instance.is_ready()) == (True, answer)
    (response,) = execute(instance, request_of(np.array([3], np.float32)))
    assert outputs_of(response)["OUTPUT0"].tolist() == [3.0]


def test_a_model_in_a_process_without_is_ready_has_no_say_in_it(make: Make) -> None:
    assert not make().says_ready


def test_a_model_in_a_process_that_answers_with_no_bool_is_not_ready(make: Make) -> None:
    instance = make(code=IS_READY.format(model=MODEL, answer="'yes'"))
    with pytest.raises(RequestError, match="is_ready must return a bool, got str"):
        instance.is_ready()


def test_a_process_that_ends_over_its_readiness_is_ready_to_be_started_again(make: Make) -> None:
    instance = make(code=IS_READY.format(model=MODEL, answer="os._exit(7)"))
    with pytest.raises(DeviceFaultError, match=r"^its process ended with exit code 7$"):
        instance.is_ready()
    assert instance.is_ready()
    assert children_of(os.getpid()) == []


def test_finalize_runs_at_unload(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "finalized"
    code = f"{MODEL}    def finalize(self):\n        open({str(place)!r}, 'w').close()\n"
    make(code=code).unload()
    assert place.exists()


def test_a_finalize_that_hangs_is_cut_off(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_model, "FINALIZE_MAX_S", 0.05)
    instance = make(code=MODEL + "    def finalize(self):\n        time.sleep(1000)\n")
    instance.unload()
    assert caplog.messages == ["model instance 'm_0_0': finalize took more than 0.05 s"]
    assert children_of(os.getpid()) == []


def test_a_process_that_ignores_its_end_is_killed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_model, "ENDING_MAX_S", 0.05)
    instance = make(
        "threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()\n" + ECHO
    )
    execute(instance, request_of(floats(1)))
    instance.unload()
    assert children_of(os.getpid()) == []


def test_what_the_model_logs_is_in_the_log_of_the_server(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    instance = make(
        "pb_utils.Logger.log_warn('50 % is enough')\n"
        "pb_utils.Logger.log_verbose('unheard')\n"
        "logging.getLogger('library').info('%d of %s', 3, 'x')\n" + ECHO
    )
    execute(instance, request_of(np.array([1], np.float32)))
    assert caplog.record_tuples == [
        ("tritrio.model", logging.WARNING, "50 % is enough"),
        ("library", logging.INFO, "3 of x"),
    ]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense",
        b'{"kind": "done", "job": 1}',
        b'{"kind": "done", "job": 1, "times": [1, 2], "rescheduled": [5], "responses": [null]}',
        b'{"kind": "done", "job": 1, "times": [1, 2], "rescheduled": [[]], "responses": [null]}',
        b'{"kind": "done", "job": 1, "times": [1, 2], "rescheduled": [], "responses": [1]}',
        b'{"kind": "done", "job": 1, "error": [1]}',
        b'{"kind": "post", "execution": 1, "index": 0}',
        b'{"kind": "post", "execution": 99, "index": 0, "response": 1}',
        b'{"kind": "unknown"}',
    ],
)
def test_a_process_that_sends_nonsense_is_ended(make: Make, sent: bytes) -> None:
    instance = make(
        f"import struct\ntext = b'[[], ' + {sent!r} + b']'\n{THE_LINK}"
        "    link.send(struct.pack('<QQ', len(text), len(text)) + text)\ntime.sleep(1000)"
    )
    with pytest.raises(DeviceFaultError, match="its process sent what is no "):
        instance.execute(Batch([request_of(floats(1))]))
    assert children_of(os.getpid()) == []


def test_auto_complete_config_runs_in_a_process(tmp_path: Path) -> None:
    code = """
    import os
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "PID", "data_type": "TYPE_INT64", "dims": [os.getpid()]})
            return config
        def execute(self, requests):
            return None
    """
    source = write_model(tmp_path, code)
    backend, before = PythonBackend(), descriptors()
    config = backend.complete_config(source, config_of(EXECUTION_MODE="process"))
    assert config.input[0].name == "PID"
    assert config.input[0].dims != [os.getpid()]
    assert (descriptors(), children_of(os.getpid())) == (before, [])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "raise ValueError('no')",
            (
                "model 'm' version 1: auto_complete_config raised ValueError: no "
                "(at 1/model.py:8 in auto_complete_config)"
            ),
        ),
        (
            "os._exit(4)",
            "model 'm': auto_complete_config failed: its process ended with exit code 4",
        ),
    ],
)
def test_a_fault_of_auto_complete_config_is_the_reason(
    tmp_path: Path, body: str, message: str
) -> None:
    code = f"""
    import os
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            {body}
        def execute(self, requests):
            return None
    """
    before = descriptors()
    with pytest.raises(RequestError) as raised:
        PythonBackend().complete_config(
            write_model(tmp_path, code), config_of(EXECUTION_MODE="process")
        )
    assert raised.value.message == message
    assert (descriptors(), children_of(os.getpid())) == (before, [])
