"""The Python models of the scheduling tests."""

WITNESS = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is INPUT0, OUTPUT1 is INPUT1, FACTS what was executed.

    GATE is the path of a FIFO: executing waits until somebody has opened and closed it.  MODE
    asks for a fault: an error code's name, "raise", or "no " and an output's name.
    """

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.batches = config["max_batch_size"] > 0
        self.outputs = [entry["name"] for entry in config["output"]]
        self.instance = args["model_instance_name"]
        controls = config.get("sequence_batching", {}).get("control_input", [])
        self.controls = {entry["name"]: entry["control"][0] for entry in controls}
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        batch = [self.seen(request) for request in requests]
        for request in requests:
            if gate := self.dial(request, "GATE"):
                with open(gate) as opened:
                    opened.read()
        return [self.answer(request, batch, i) for i, request in enumerate(requests)]

    def dial(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return "" if tensor is None else tensor.as_numpy().flat[0].decode()

    def seen(self, request):
        null = request.correlation_id() == 0 and bool(self.controls)
        inputs = {}
        for tensor in request.inputs():
            name, values = tensor.name(), tensor.as_numpy()
            if name not in ("GATE", "MODE"):
                known = not null or name in self.controls  # a null request's data are anything
                listed = [self.plain(value) for value in values.flat] if known else None
                inputs[name] = [str(values.dtype), list(values.shape), listed]
        return {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "outputs": sorted(request.requested_output_names()),
            "parameters": json.loads(request.parameters() or "{}"),
            "inputs": inputs,
        }

    def plain(self, value):
        return value.decode() if isinstance(value, bytes) else value.item()

    def answer(self, request, batch, position):
        mode = self.dial(request, "MODE")
        if mode == "raise":
            raise ValueError("asked to raise")
        if mode and not mode.startswith("no "):
            error = pb_utils.TritonError("said the model", getattr(pb_utils.TritonError, mode))
            return pb_utils.InferenceResponse(error=error)
        facts = {
            "execution": self.executions,
            "instance": self.instance,
            "position": position,
            "batch": batch,
        }
        text = np.array([json.dumps(facts).encode()], object)
        tensors = [pb_utils.Tensor("FACTS", text.reshape(1, 1) if self.batches else text)]
        for name in self.outputs:
            given = pb_utils.get_input_tensor_by_name(request, name.replace("OUTPUT", "INPUT"))
            if name != "FACTS" and given is not None and mode != "no " + name:
                tensors.append(pb_utils.Tensor(name, given.as_numpy()))
        return pb_utils.InferenceResponse(tensors)
'''

INCREASE = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is one more than INPUT0, OUTPUT1 ten times as much."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        outputs = [pb_utils.Tensor("OUTPUT0", values + 1), pb_utils.Tensor("OUTPUT1", values * 10)]
        return pb_utils.InferenceResponse(outputs)
'''

REPEAT = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends as many responses as INPUT0 says: 0, 1, 2 and so on; -1 asks for an error."""

    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().flat[0]
            sender = request.get_response_sender()
            if count < 0:
                error = pb_utils.TritonError("said the model", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error))
            for number in range(count):
                output = pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
'''

ITERATE = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Executes a request INPUT0 times, then answers with what it saw each time."""

    def initialize(self, args):
        self.batches = json.loads(args["model_config"])["max_batch_size"] > 0
        self.seen = {}

    def execute(self, requests):
        for request in requests:
            gate = pb_utils.get_input_tensor_by_name(request, "GATE")
            if gate is not None and request.flags():
                with open(gate.as_numpy().flat[0].decode()) as opened:
                    opened.read()
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request, count):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        identity = request.correlation_id()
        seen = self.seen.setdefault(identity, [])
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()
        seen.append([request.flags(), start.tolist(), count, values.tolist()])
        if len(seen) < values.flat[0]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        text = np.array([json.dumps(self.seen.pop(identity)).encode()], object)
        facts = pb_utils.Tensor("FACTS", text.reshape(1, 1) if self.batches else text)
        return pb_utils.InferenceResponse([facts, pb_utils.Tensor("OUTPUT0", values)])
'''

STATEFUL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is the state before, STATE_OUT and OUTPUT1 the state plus INPUT0."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        state = pb_utils.get_input_tensor_by_name(request, "STATE_IN").as_numpy()
        outputs = {"OUTPUT0": state, "OUTPUT1": state + values, "STATE_OUT": state + values}
        tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items()]
        return pb_utils.InferenceResponse(tensors)
'''
