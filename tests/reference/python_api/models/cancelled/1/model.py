"""Answers until its client has left, and tells the next one about it."""

import threading

import triton_python_backend_utils as pb_utils
from seen import mode_of, seen

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CHECKS_MAX = 1000


class TritonPythonModel:
    def initialize(self, args):
        self.found = None

    def execute(self, requests):
        for request in requests:
            getattr(self, mode_of(request))(request, request.get_response_sender())

    def until_cancelled(self, request, sender):
        before = [sender.is_cancelled(), request.is_cancelled()]
        sender.send(seen("started"))
        pause = threading.Event()
        for _ in range(CHECKS_MAX):
            if sender.is_cancelled():
                break
            pause.wait(0.005)
        self.found = [before, [sender.is_cancelled(), request.is_cancelled()]]
        sender.send(flags=FINAL)

    def what_was_found(self, request, sender):
        sender.send(seen(self.found), FINAL)
