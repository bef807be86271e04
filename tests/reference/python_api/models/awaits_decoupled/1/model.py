"""A decoupled model whose `execute` awaits."""

import asyncio

from calling import call, shown_response
from seen import mode_of, seen

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            await getattr(self, mode_of(request))(request.get_response_sender())

    async def stream_pauses(self, sender):
        for number in range(3):
            await asyncio.sleep(0.001)
            sender.send(seen(number))
        sender.send(flags=FINAL)

    async def stream_call(self, sender):
        response = await call(4).async_exec()
        sender.send(seen(shown_response(response)), FINAL)
