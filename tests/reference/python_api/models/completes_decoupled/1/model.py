"""Says by itself that it is decoupled."""

from seen import seen

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
        return auto_complete_model_config

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(seen("one"))
            sender.send(seen("two"))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
