"""Calls other models and waits."""

import json
import threading

import numpy as np
from calling import call, facts_of, shown_response
from seen import Sees, outcome

import triton_python_backend_utils as pb_utils

ASKED = ("OUTPUT0", "FACTS")


class TritonPythonModel(Sees):
    def initialize(self, args):
        self.made = None
        self.outcome = outcome(self.make_early)

    def make_early(self):
        self.made = call(1)

    def see_made_early(self, request):
        return self.outcome

    def see_made_early_and_sent(self, request):
        return shown_response(self.made.exec())

    def see_answer(self, request):
        return shown_response(call(1, 2).exec())

    def see_no_elements(self, request):
        return shown_response(call().exec())

    def see_every_output(self, request):
        return sorted(tensor.name() for tensor in call(1, outputs=ASKED).exec().output_tensors())

    def see_no_outputs_asked(self, request):
        response = call(1, outputs=()).exec()
        return sorted(tensor.name() for tensor in response.output_tensors())

    def see_output_twice(self, request):
        return shown_response(call(1, outputs=("OUTPUT0", "OUTPUT0")).exec())

    def see_output_by_name(self, request):
        response = call(1).exec()
        found = pb_utils.get_output_tensor_by_name(response, "OUTPUT0")
        return [found.name(), pb_utils.get_output_tensor_by_name(response, "FACTS")]

    def see_defaults(self, request):
        return facts_of(call(1, outputs=ASKED).exec())

    def see_given(self, request):
        given = {"request_id": "r", "correlation_id": 7, "flags": 3, "timeout": 9}
        parameters = {"b": True, "i": -3, "t": "x"}
        return facts_of(call(1, outputs=ASKED, parameters=parameters, **given).exec())

    def see_text_correlation_id(self, request):
        return facts_of(call(1, outputs=ASKED, correlation_id="seven").exec())

    def see_version(self, request):
        return shown_response(call(1, model_version=1).exec())

    def see_other_version(self, request):
        return shown_response(call(1, model_version=9).exec(), ["called", "not ready", "ready"])

    def see_version_zero(self, request):
        return shown_response(call(1, model_version=0).exec(), ["called"])

    def see_unknown_model(self, request):
        return shown_response(call(1, model="there_is_none").exec(), ["there_is_none", "ready"])

    def see_failed_model(self, request):
        return shown_response(
            call(1, model="fails_initializing").exec(), ["fails_initializing", "ready"]
        )

    def see_unknown_output(self, request):
        return shown_response(call(1, outputs=("OTHER",)).exec(), ["called", "other"])

    def see_unknown_input(self, request):
        return shown_response(call(1, name="OTHER").exec(), ["called", "other"])

    def see_other_data_type(self, request):
        return shown_response(call(1, kind=np.int32).exec(), ["called", "input0"])

    def see_other_rank(self, request):
        return shown_response(call([1, 2]).exec(), ["called", "input0"])

    def see_no_inputs(self, request):
        one = pb_utils.InferenceRequest(
            model_name="called", inputs=[], requested_output_names=["OUTPUT0"]
        )
        return shown_response(one.exec(), ["called"])

    def see_error(self, request):
        return shown_response(call(-1).exec(), ["said the model"])

    def see_raise(self, request):
        return shown_response(call(-2).exec(), ["asked to"])

    def see_same_request_again(self, request):
        one = call(3)
        return [shown_response(one.exec()), shown_response(one.exec())]

    def see_input_of_the_request(self, request):
        mode = pb_utils.get_input_tensor_by_name(request, "MODE")
        one = pb_utils.InferenceRequest(
            model_name="without_initialize", inputs=[mode], requested_output_names=["SEEN"]
        )
        return shown_response(one.exec())

    def see_output_passed_on(self, request):
        (tensor,) = call(1, 2).exec().output_tensors()
        again = pb_utils.Tensor.from_dlpack("INPUT0", tensor.to_dlpack())
        one = pb_utils.InferenceRequest(
            model_name="called", inputs=[again], requested_output_names=["OUTPUT0"]
        )
        return shown_response(one.exec())

    def see_output_can_be_written(self, request):
        (tensor,) = call(1, 2).exec().output_tensors()
        return tensor.as_numpy().flags.writeable

    def see_response_type(self, request):
        return isinstance(call(1).exec(), pb_utils.InferenceResponse)

    def see_many_from_one(self, request):
        return shown_response(call(1, model="called_many").exec(), ["called_many", "decoupled"])

    def see_sequence_of_calls(self, request):
        return [shown_response(call(number).exec()) for number in range(20)]

    def see_preferred_memory(self, request):
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)
        return shown_response(call(1, preferred_memory=memory).exec())

    def see_trace(self, request):
        return shown_response(call(1, trace=request.trace()).exec())

    def see_async_in_plain_execute(self, request):
        return outcome(lambda: type(call(1).async_exec()).__name__)

    def see_thread(self, request):
        found = []
        thread = threading.Thread(target=lambda: found.append(shown_response(call(4).exec())))
        thread.start()
        thread.join()
        return found

    def see_parameters_of_the_response(self, request):
        return outcome(lambda: json.loads(call(1).exec().parameters()))
