"""Answers through a response sender, though it may have one response only."""

from seen import mode_of, outcome, seen

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.last = None

    def execute(self, requests):
        return [getattr(self, mode_of(request))(request) for request in requests]

    def see_response_and_final(self, request):
        request.get_response_sender().send(seen("sent"), FINAL)

    def see_response_then_final(self, request):
        sender = request.get_response_sender()
        sender.send(seen("sent"))
        sender.send(flags=FINAL)

    def see_by_keyword(self, request):
        request.get_response_sender().send(response=seen("sent"), flags=FINAL)

    def see_error(self, request):
        error = pb_utils.TritonError("said the model", pb_utils.TritonError.NOT_FOUND)
        request.get_response_sender().send(pb_utils.InferenceResponse(error=error), FINAL)

    def see_sender_unused(self, request):
        request.get_response_sender()
        return seen("returned")

    def keep(self, sender, *arguments, words=(), **named):
        self.last = outcome(sender.send, *arguments, words=words, **named)

    def see_last(self, request):
        last, self.last = self.last, None
        return seen(last)

    def see_second_response(self, request):
        sender = request.get_response_sender()
        sender.send(seen("first"))
        self.keep(sender, seen("second"), words=["response"])
        sender.send(flags=FINAL)

    def see_last_of_second_response(self, request):
        return self.see_last(request)

    def see_final_first(self, request):
        sender = request.get_response_sender()
        self.keep(sender, flags=FINAL, words=["response"])
        return seen("returned")

    def see_last_of_final_first(self, request):
        return self.see_last(request)

    def see_flag_four(self, request):
        sender = request.get_response_sender()
        self.keep(sender, seen("sent"), 4, words=["flag", "supported"])
        return seen("returned")

    def see_last_of_flag_four(self, request):
        return self.see_last(request)

    def see_nothing(self, request):
        self.keep(request.get_response_sender(), words=["response"])
        return seen("returned")

    def see_last_of_nothing(self, request):
        return self.see_last(request)

    def see_after_final(self, request):
        sender = request.get_response_sender()
        sender.send(seen("sent"), FINAL)
        self.keep(sender, seen("more"))

    def see_last_of_after_final(self, request):
        return self.see_last(request)

    def see_final_twice(self, request):
        sender = request.get_response_sender()
        sender.send(seen("sent"), FINAL)
        self.keep(sender, flags=FINAL)

    def see_last_of_final_twice(self, request):
        return self.see_last(request)

    def see_text(self, request):
        self.keep(request.get_response_sender(), "sent")
        return seen("returned")

    def see_last_of_text(self, request):
        return self.see_last(request)

    def see_flags_text(self, request):
        self.keep(request.get_response_sender(), seen("sent"), "1")
        return seen("returned")

    def see_last_of_flags_text(self, request):
        return self.see_last(request)

    def see_sent_and_returned(self, request):
        request.get_response_sender().send(seen("sent"), FINAL)
        return seen("returned")

    def see_nothing_at_all(self, request):
        return None
