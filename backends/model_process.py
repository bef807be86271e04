"""The process that a model runs in, as the server sees it: started, talked to, and surely ended.

It is a fresh interpreter, in a process group of its own, and dies with the server. Its end is seen
through its process handle, whatever its link does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from ..protocol.errors import ErrorCode, RequestError
from .process_link import LinkClosedError, LinkError, Message, Packet, receive

MESSAGES_AT_ONCE_MAX: Final = 64
"""Messages that are received before the caller has a look at them, which bounds their memory."""

CLOSED_MAX_S: Final = 0.0625
"""How long a process may live on once it has closed its link, in seconds: it is about to end."""

_PACKAGE_ROOT: Final = Path(__file__).absolute().parents[2]
"""The directory to import `tritrio` from; links are not followed, since they may lead out of it."""

_START: Final = """
import importlib, json, os, struct, sys
fd, parent, root, *fallbacks = sys.argv[1:]
try:
    if sys.version_info < (3, 11):
        raise ImportError(f"expected Python 3.11 or newer, got {sys.version.split()[0]}")
    own = [path for path in sys.path if path]
    sys.path[:] = [root, *own]
    import tritrio
    sys.path[:] = own
    sys.path += [path for path in (root, *fallbacks) if path not in sys.path]
    from tritrio.backends.process_worker import main
except ImportError as error:
    text = json.dumps([[], {"kind": "unfit", "text": str(error)[:1000]}]).encode()
    os.write(int(fd), struct.pack("<QQ", len(text), len(text)) + text)
    sys.exit(1)
main(int(fd), int(parent))
"""
"""What the interpreter runs: the server's own package, and behind all that the interpreter has,
what the server has installed. It says so itself if that does not fit together."""


class ProcessEndedError(Exception):
    """The process is no more; the text says how it ended."""


@final
class ModelProcess:
    """A process of one model, and the server's end of its link.

    All but `kill` and `send_later` is for one thread.

    Args:
      name: What it is called where it is reported, such as "model instance 'm_0_0'".
      interpreter: The Python to start.

    Raises:
      RequestError: it cannot be started.
    """

    def __init__(self, name: str, interpreter: Path) -> None:
        self._name = name
        self._out: deque[Packet] = deque()
        self._later: deque[Callable[[], Packet]] = deque()
        self._fault = ""  # why it was ended, if it was the server
        self._lock = threading.Lock()  # a process that was waited for must not be killed
        self._reaped = False
        if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
            raise RequestError(ErrorCode.UNSUPPORTED, f"{name}: a process needs Linux")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = _started(interpreter, theirs.fileno())
                self._handle = os.pidfd_open(self._process.pid)
            except OSError as error:
                self._link.close()
                os.close(self._bell)
                raise RequestError(
                    ErrorCode.INTERNAL, f"{name}: cannot start {interpreter}: {error}"
                ) from None
        self._link.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)
        self._poll.register(self._link, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)

    def __repr__(self) -> str:
        return f"<ModelProcess {self.pid} of {self._name}>"

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        return self._process.pid

    def send(self, packet: Packet) -> bool:
        """Send a message now, or as soon as there is room for it; False if it never gets there."""
        self._out.append(packet)
        return self._flush()

    def send_later(self, make: Callable[[], Packet]) -> None:
        """Have a message made and sent by the thread that waits for messages."""
        self._later.append(make)
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def _send_what_came(self) -> None:
        os.eventfd_read(self._bell)
        for _ in range(len(self._later)):
            self.send(self._later.popleft()())

    def _flush(self) -> bool:
        out = self._out
        try:
            while out:
                out[0].send(self._link)
                out.popleft()
        except BlockingIOError:
            self._poll.modify(self._link, select.POLLIN | select.POLLOUT)
        except LinkClosedError:
            out.popleft()  # its end comes next
            return False
        else:
            self._poll.modify(self._link, select.POLLIN)
        return True

    def messages(self, timeout_s: float | None = None, until_fd: int = -1) -> list[Message]:
        """Wait for messages, until `until_fd` is readable or the time is over.

        Raises:
          ProcessEndedError: it has ended, and all it said was returned before.
        """
        poll = self._poll
        if until_fd >= 0:
            poll.register(until_fd, select.POLLIN)
        try:
            ready = dict(poll.poll(None if timeout_s is None else timeout_s * 1000))
        finally:
            if until_fd >= 0:
                poll.unregister(until_fd)
        link_events = ready.get(self._link.fileno(), 0)
        if link_events & select.POLLOUT:
            self._flush()
        if self._bell in ready:
            self._send_what_came()
        if not link_events and self._handle not in ready:
            return []
        received: list[Message] = []
        closed = False
        try:
            while len(received) < MESSAGES_AT_ONCE_MAX:
                received.append(receive(self._link))
        except BlockingIOError:
            pass
        except LinkClosedError:
            closed = True
        except LinkError as error:
            self._fault = f"its process sent what is no message: {error}"
            closed = True
        if not received and (closed or self._handle in ready):
            raise ProcessEndedError(self._ended())
        return received

    def misbehaved(self, fault: str) -> ProcessEndedError:
        """End the process because of what it sent, and return what to raise for it."""
        self._fault = f"its process {fault}"
        return ProcessEndedError(self._ended())

    def kill(self) -> None:
        """End it and what it has started at once; idempotent, callable from any thread."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._reaped:
                os.killpg(self._process.pid, number)  # there is one, if only of a zombie

    def close(self, patience_s: float = 0.0) -> None:
        """End it, after some time gently and then by force; nothing of it is left. Idempotent."""
        self._link.close()
        while self._out:
            self._out.popleft().close()
        if not self._reaped:
            if not self._ends_within(patience_s) and patience_s:
                self._signal(signal.SIGTERM)
                self._ends_within(patience_s)
            self._reap()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        with self._lock:
            bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)

    def _ends_within(self, time_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(None if time_s is None else time_s * 1000))

    def _reap(self) -> int:
        """Return its exit code; a zombie's is not changed by another signal."""
        self.kill()  # with what it has started
        self._ends_within(None)
        with self._lock:
            self._reaped = True
            return self._process.wait()

    def _ended(self) -> str:
        """Return how it ended, or was ended for what it did."""
        self._ends_within(CLOSED_MAX_S)
        code = self._process.returncode if self._reaped else self._reap()
        if self._fault:
            return self._fault
        if code < 0:
            return f"its process was killed by {_signal_name(-code)}"
        return f"its process ended with exit code {code}"


def _started(interpreter: Path, link_fd: int) -> subprocess.Popen[bytes]:
    fallbacks = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    arguments = [str(link_fd), str(os.getpid()), str(_PACKAGE_ROOT), *fallbacks]
    path = os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", os.defpath)])
    return subprocess.Popen(  # noqa: S603 - the operator chose the interpreter
        [str(interpreter), "-u", "-c", _START, *arguments],  # a crash loses nothing it printed
        stdin=subprocess.DEVNULL,
        pass_fds=(link_fd,),
        env={**os.environ, "PATH": path},
        process_group=0,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
