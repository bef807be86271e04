"""Calls models that answer with any number of responses."""

from calling import call, shown_response
from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


def many(*values, **more):
    return call(*values, model="called_many", **more).exec(decoupled=True)


def shown_all(responses):
    return [shown_response(response, ["said the model"]) for response in responses]


def with_outputs(responses):
    return [found for found in shown_all(responses) if found]


class TritonPythonModel(Sees):
    def see_three(self, request):
        return with_outputs(many(1, 2, 3))

    def see_none(self, request):
        return with_outputs(many())

    def see_empty_end(self, request):
        return shown_all(many(1))

    def see_error_between(self, request):
        return with_outputs(many(1, -1, 2))

    def see_one_response_of_an_ordinary_model(self, request):
        return with_outputs(call(5).exec(decoupled=True))

    def see_error_of_an_ordinary_model(self, request):
        return with_outputs(call(-1).exec(decoupled=True))

    def see_next(self, request):
        responses = iter(many(1, 2))
        first = shown_response(next(responses))
        return [first, with_outputs(responses)]

    def see_after_the_end(self, request):
        responses = iter(many(1))
        list(responses)
        return outcome(next, responses)

    def see_iterator_of_the_iterator(self, request):
        responses = many(1)
        found = iter(responses) is responses
        list(responses)
        return found

    def see_read_twice(self, request):
        responses = many(1, 2)
        return [len(with_outputs(responses)), len(with_outputs(responses))]

    def see_unknown_model(self, request):
        responses = call(1, model="there_is_none").exec(decoupled=True)
        return with_outputs(responses)

    def see_type(self, request):
        responses = many(1)
        found = type(responses).__name__
        list(responses)
        return found

    def see_cancel_after_the_end(self, request):
        responses = many(1)
        list(responses)
        return outcome(responses.cancel)

    def see_cancel(self, request):
        responses = many(*range(3))
        found = outcome(responses.cancel)
        list(responses)
        return found

    def see_loop_left(self, request):
        for response in many(1, 2, 3):
            return shown_response(response)

    def see_unknown_output(self, request):
        return with_outputs(many(1, outputs=("OTHER",)))

    def see_by_position(self, request):
        return with_outputs(call(1, model="called_many").exec(True))

    def see_other_types(self, request):
        return [type(one).__name__ for one in many(1)][:1] == [pb_utils.InferenceResponse.__name__]
