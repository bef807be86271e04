"""An `execute` that awaits."""

import asyncio

from calling import call, shown_response
from seen import mode_of, outcome, seen


class TritonPythonModel:
    async def execute(self, requests):
        return [seen(await getattr(self, mode_of(request))(request)) for request in requests]

    async def see_one(self, request):
        return shown_response(await call(1, 2).async_exec())

    async def see_several(self, request):
        responses = await asyncio.gather(*(call(number).async_exec() for number in range(5)))
        return [shown_response(response) for response in responses]

    async def see_error(self, request):
        return shown_response(await call(-1).async_exec(), ["said the model"])

    async def see_unknown_model(self, request):
        return shown_response(await call(1, model="there_is_none").async_exec(), ["there_is_none"])

    async def see_many(self, request):
        responses = await call(1, 2, model="called_many").async_exec(decoupled=True)
        found = [shown_response(response) for response in responses]
        return [one for one in found if one]

    async def see_sleep(self, request):
        await asyncio.sleep(0.01)
        return "slept"

    async def see_exec(self, request):
        return shown_response(call(3).exec())

    async def see_raise(self, request):
        raise ValueError("asked to")

    async def see_task(self, request):
        task = asyncio.create_task(call(6).async_exec())
        return shown_response(await task)

    async def see_wait(self, request):
        done, _ = await asyncio.wait([call(number).async_exec() for number in range(3)])
        return len(done)

    async def see_future(self, request):
        return shown_response(await asyncio.ensure_future(call(7).async_exec()))

    async def see_shield(self, request):
        return shown_response(await asyncio.shield(call(7).async_exec()))

    async def see_time_limit(self, request):
        return shown_response(await asyncio.wait_for(call(7).async_exec(), 5))

    async def see_loop(self, request):
        return outcome(lambda: asyncio.get_running_loop().is_running())

    async def see_own_coroutine(self, request):
        async def inner():
            await asyncio.sleep(0)
            return 5

        return await inner()
