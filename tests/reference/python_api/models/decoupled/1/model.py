"""Sends any number of responses."""

import threading

from seen import mode_of, outcome, seen

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def late(sender, allowed):
    allowed.wait()
    for number in range(3):
        sender.send(seen(number))
    sender.send(flags=FINAL)


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []
        self.returned = threading.Event()

    def execute(self, requests):
        returned = None
        for request in requests:
            returned = getattr(self, mode_of(request))(request, request.get_response_sender())
        return returned

    def finalize(self):
        for thread in self.threads:
            thread.join()

    def stream_none(self, request, sender):
        sender.send(flags=FINAL)

    def stream_one(self, request, sender):
        sender.send(seen("one"), FINAL)

    def stream_three(self, request, sender):
        for number in range(3):
            sender.send(seen(number))
        sender.send(flags=FINAL)

    def stream_final_at_the_last(self, request, sender):
        sender.send(seen("one"))
        sender.send(seen("two"), flags=FINAL)

    def stream_error_between(self, request, sender):
        sender.send(seen("one"))
        error = pb_utils.TritonError("said the model", pb_utils.TritonError.INVALID_ARG)
        sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(seen("two"))
        sender.send(flags=FINAL)

    def stream_thread(self, request, sender):
        allowed = threading.Event()
        thread = threading.Thread(target=late, args=(sender, allowed))
        self.threads.append(thread)
        thread.start()
        allowed.set()

    def stream_misuse(self, request, sender):
        tried = [
            outcome(sender.send, seen("x"), 4, words=["flag"]),
            outcome(sender.send, words=["response"]),
            outcome(sender.send, "x"),
            sender.is_cancelled(),
            request.is_cancelled(),
        ]
        sender.send(seen(tried), FINAL)

    def stream_misuse_after_final(self, request, sender):
        sender.send(seen("one"), FINAL)
        self.kept = [
            outcome(sender.send, seen("x"), words=["sender", "closed"]),
            outcome(sender.send, flags=FINAL, words=["sender", "closed"]),
            outcome(sender.send, words=["response", "closed"]),
        ]

    def stream_kept(self, request, sender):
        sender.send(seen(self.kept), FINAL)

    def stream_raise_before(self, request, sender):
        raise ValueError("asked to")

    def stream_senders(self, request, sender):
        other = request.get_response_sender()
        same = other is sender
        sender.send(seen(same))
        other.send(flags=FINAL)

    def stream_returned_list(self, request, sender):
        return [seen("returned")]

    def stream_returned_empty_list(self, request, sender):
        return []

    def stream_returned_number(self, request, sender):
        return 3
