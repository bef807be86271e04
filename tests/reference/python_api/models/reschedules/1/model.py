"""Has requests executed again."""

from seen import mode_of, outcome, seen

import triton_python_backend_utils as pb_utils

AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL


class TritonPythonModel:
    def initialize(self, args):
        self.turns = 0

    def execute(self, requests):
        self.turns += 1
        return [getattr(self, mode_of(request))(request) for request in requests]

    def see_three_turns(self, request):
        if self.turns < 3:
            request.set_release_flags(AGAIN)
            return None
        turns, self.turns = self.turns, 0
        return seen([turns, request.flags()])

    def see_released(self, request):
        self.turns = 0
        return (
            seen(outcome(request.set_release_flags, ALL))
            if request.set_release_flags(ALL) is None
            else None
        )

    def see_unknown_flag(self, request):
        self.turns = 0
        return seen(outcome(request.set_release_flags, 4, words=["flag"]))

    def see_rescheduled_and_answered(self, request):
        turns, self.turns = self.turns, 0
        if turns == 1:
            request.set_release_flags(AGAIN)
        return seen("answered")

    def see_zero_flag(self, request):
        self.turns = 0
        return seen(outcome(request.set_release_flags, 0, words=["flag"]))
