"""What the models beside this file share; the tests copy it into each version directory."""

import json

import numpy as np

import triton_python_backend_utils as pb_utils


class Sees:
    """MODE names the method that looks at something; what it returns is the output SEEN."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        return seen(getattr(self, mode_of(request))(request))


def mode_of(request):
    """Return the text of MODE."""
    return pb_utils.get_input_tensor_by_name(request, "MODE").as_numpy().flat[0].decode()


def seen(value):
    """Return a response whose SEEN is `value` as JSON."""
    return pb_utils.InferenceResponse([seen_tensor(value)])


def seen_tensor(value):
    """Return `value` as JSON in a tensor."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return pb_utils.Tensor("SEEN", np.array([text.encode()], np.object_))


def outcome(function, *arguments, words=(), **named):
    """Return what a call gives: its value, or its exception's type and which words that has."""
    try:
        value = function(*arguments, **named)
    except Exception as error:
        text = str(error).lower()
        return {"raises": type(error).__name__, "says": [word for word in words if word in text]}
    return {"returns": shown(value)}


def shown(value):
    """Return a value in a form that does not depend on the server."""
    if isinstance(value, pb_utils.Tensor):
        return described(value)
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), [shown(item) for item in value.ravel()]]
    if isinstance(value, np.generic):
        return [str(value.dtype), repr(value.item())]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [shown(item) for item in value]]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value) if isinstance(value, bytes) else type(value).__name__


def described(tensor):
    """Return name, shape and elements of a tensor."""
    return [tensor.name(), list(tensor.shape()), shown(tensor.as_numpy())]
