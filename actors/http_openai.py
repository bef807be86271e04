"""OpenAI's API for models that generate text: chats, completions, and the models there are.

Each prompt is one ordinary request to the model, with the tensors of Triton's vLLM backend; so any
model with those is served, whatever it is made with. Only chats need its chat template, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, TypeVar, TypeVarTuple, final
from uuid import uuid4

import orjson
import trio

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.generate_codec import check_coding
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.llm_codec import llm_request_inputs
from ..protocol.llm_tensors import INPUT_IDS, RETURN_LOGPROBS, LlmRequest
from ..protocol.openai.answers import Answer as OpenAiAnswer, ChatAnswer, CompletionAnswer, Header
from ..protocol.openai.chat_request import parse_chat
from ..protocol.openai.completion_request import Prompt, parse_completion
from ..protocol.openai.errors import OpenAiError, from_request_error
from ..protocol.openai.generation import Chat, GenerationRequest, ToolUse
from ..protocol.openai.tool_calls import make_reader, shows_special_tokens
from ..protocol.requests import InferRequest, Parameters
from ..protocol.tensors import Buffer
from ..protocol.wording import quoted
from ._http_sampling import sample_request
from ._openai_models import CHAT, COMPLETIONS, choice, described, endpoints, not_found, why_not
from ._openai_replies import Replies
from ._openai_stream import OpenAiStream, take_response
from ._worker_threads import RunInThread
from .http_api import CODEC_THREADS_MAX, HttpMethod
from .http_service import Answer
from .inference import count_refusal, submit
from .router import Router
from .routing_table import ModelVersion
from .tracing import Tracing

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Forward: TypeAlias = Callable[[HttpRequest], Parameters]
"""Returns the headers of a request that become parameters; may raise `RequestError`."""
Parse: TypeAlias = Callable[[Buffer], GenerationRequest]

INLINE_BYTES_MAX: Final = 4096
"""Bodies up to this size are read, and their prompts made, on the event loop: templates and
tokenizers take about a millisecond for one."""


class OpenAiContext:
    """What all calls of the API need.

    Args:
      router: Where models are found.
      tracing: Samples inferences.
      now_s: Returns Unix time.
      forward: Takes parameters from headers; None takes none.
      names_models: Whether errors may name the models there are: only who may list them is told.
      run_in_thread: Reads large bodies; None for threads of its own.

    Attributes:
      router: Likewise.
      now_s: Likewise.
    """

    def __init__(
        self,
        *,
        router: Router,
        tracing: Tracing,
        now_s: Callable[[], float],
        forward: Forward | None = None,
        names_models: bool = True,
        run_in_thread: RunInThread | None = None,
    ) -> None:
        self.router = router
        self.now_s = now_s
        self._tracing = tracing
        self._forward = forward
        self._names_models = names_models
        self._run_in_thread = run_in_thread or _Threads()

    def find(self, name: str, endpoint: str) -> ModelVersion:
        """Return the model for a call, whether it can answer that or not; see `check`.

        Raises:
          OpenAiError: there is no such model; names those for this call.
          RequestError: see `RoutingTable.find`.
        """
        try:
            return self.router.table.find(name)
        except RequestError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            message = error.message
        raise not_found(message + self._choice(endpoint))

    def check(self, version: ModelVersion, endpoint: str) -> None:
        """Check that a model can answer a call.

        Raises:
          OpenAiError: it cannot; names those that can.
        """
        why = why_not(version, endpoint)
        if why:
            raise not_found(why + self._choice(endpoint))

    def _choice(self, endpoint: str) -> str:
        return choice(self.router.table.ready_versions(), endpoint) if self._names_models else ""

    async def run(self, job: Callable[[*Ts], T], *args: *Ts, inline: bool) -> T:
        """Return or raise what a job does, on the event loop or on a thread."""
        if inline:
            return _contained(job, *args)
        result = await self._run_in_thread(_contained, job, *args)
        await trio.lowlevel.checkpoint_if_cancelled()  # a thread is not cut short
        return result

    def submit_all(
        self,
        request: HttpRequest,
        version: ModelVersion,
        infers: list[InferRequest],
        arrived_s: float,
    ) -> Replies:
        """Hand the requests of one call to a model: all of them, or none.

        Raises:
          RequestError: see `submit`, or a header that is forwarded must not be.
        """
        replies = Replies()
        try:
            parameters = {} if self._forward is None else self._forward(request)
            for infer in infers:
                infer.parameters |= parameters
                if self._tracing.active and infer is infers[0]:  # one trace a call
                    sample_request(self._tracing, request, infer)
                replies.add(submit(version, infer, arrived_s))
        except BaseException:
            replies.close()
            raise
        return replies


@final
class _Threads:
    """Does what is long; whoever calls waits for the end, since the body is the call's."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(CODEC_THREADS_MAX)

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        return await trio.to_thread.run_sync(job, *args, limiter=self._limiter)


def _contained(job: Callable[[*Ts], T], *args: *Ts) -> T:
    """Return or raise what a job does, a panic of a tokenizer as an `Exception`.

    Libraries in Rust panic with what is none, which would end more than the call.
    """
    try:
        return job(*args)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:
        raise RuntimeError(f"a library failed with {type(panic).__name__}: {panic}") from panic


def failed(error: OpenAiError | RequestError) -> HttpResponse:
    """Return the answer that reports why a call failed."""
    error.with_traceback(None)  # its frames hold the request, and the request holds it
    if isinstance(error, RequestError):
        error = from_request_error(error)
    return error.response()


def as_request_error(error: OpenAiError | RequestError) -> RequestError:
    """Return an error as statistics count it."""
    return error if isinstance(error, RequestError) else invalid_argument(error.message)


@final
class OpenAiMethods:
    """Answers the calls but for embeddings.

    Args:
      context: What all calls need.
    """

    def __init__(self, context: OpenAiContext) -> None:
        self._context = context
        self._created = int(context.now_s())

    def mapping(self) -> Mapping[RouteName, HttpMethod]:
        """Return the calls; see `HttpApi.extend`."""
        return {
            RouteName.OPENAI_CHAT: self._chat,
            RouteName.OPENAI_COMPLETIONS: self._complete,
            RouteName.OPENAI_MODELS: self._models,
            RouteName.OPENAI_MODEL: self._model,
        }

    def _models(self, _: HttpRequest, __: Route) -> HttpResponse:
        table = self._context.router.table
        latest = {version.name: version for version in table.ready_versions()}
        models = [described(each, self._created) for each in latest.values() if endpoints(each)]
        document = {"object": "list", "data": models}
        return HttpResponse(200, [JSON_CONTENT_TYPE], orjson.dumps(document))

    def _model(self, _: HttpRequest, route: Route) -> HttpResponse:
        version = self._context.router.table.find(route.model)
        if not endpoints(version):
            what = f"generates text or makes embeddings, got {quoted(version.name)}"
            return failed(not_found(f"expected a model that {what}, which does not"))
        document = described(version, self._created)
        return HttpResponse(200, [JSON_CONTENT_TYPE], orjson.dumps(document))

    def _chat(self, request: HttpRequest, _: Route) -> Awaitable[Answer]:
        return self._generate(request, parse_chat)

    def _complete(self, request: HttpRequest, _: Route) -> Awaitable[Answer]:
        return self._generate(request, parse_completion)

    async def _generate(self, request: HttpRequest, parse: Parse) -> Answer:
        arrived_s = trio.current_time()
        context = self._context
        try:
            check_coding(request.headers.get(b"content-encoding", b""))
            inline = len(request.body) <= INLINE_BYTES_MAX
            asked = await context.run(parse, request.body, inline=inline)
            endpoint = COMPLETIONS if asked.chat is None else CHAT
            version = context.find(asked.model, endpoint)
            try:
                context.check(version, endpoint)
                _check_inputs(asked, version)
                infers = await context.run(_infer_requests, asked, version, inline=inline)
                # It may have been replaced meanwhile, and take no more requests.
                version = context.find(asked.model, endpoint)
                header = self._header(asked, version)
                answer = _answer(asked, version, header)
            except (OpenAiError, RequestError) as error:
                count_refusal(version, as_request_error(error), arrived_s)
                raise
            for infer in infers:
                infer.id = header.id
            replies = context.submit_all(request, version, infers, arrived_s)
        except (OpenAiError, RequestError) as error:
            return failed(error)
        headers = [(b"X-Request-Id", header.id.encode())]
        try:
            if not asked.stream:
                while await take_response(replies, answer) is not None:
                    pass
                replies.close()
                return HttpResponse(200, [JSON_CONTENT_TYPE, *headers], answer.document())
            stream = OpenAiStream(replies, answer, headers)
            await stream.begin()
        except RequestError as error:
            replies.close()
            return failed(error)
        except BaseException:
            replies.close()
            raise
        return stream

    def _header(self, asked: GenerationRequest, version: ModelVersion) -> Header:
        prefix = "cmpl" if asked.chat is None else "chatcmpl"
        return Header(
            id=f"{prefix}-{uuid4().hex}",
            created=int(self._context.now_s()),
            model=asked.model,
            fingerprint=f"{version.name}-{version.version}",
        )


def _check_inputs(asked: GenerationRequest, version: ModelVersion) -> None:
    """Refuse a model that has no inputs for what is asked for."""
    inputs = version.spec.inputs
    if asked.logprobs and RETURN_LOGPROBS not in inputs:
        raise OpenAiError(
            400,
            f"model '{version.name}' gives no log probabilities, got 'logprobs'",
            param="logprobs",
        )
    if INPUT_IDS not in inputs and not all(isinstance(each, str) for each in asked.prompts):
        raise OpenAiError(
            400,
            f"model '{version.name}' takes prompts that are text, got token ids",
            param="prompt",
        )


def _infer_requests(asked: GenerationRequest, version: ModelVersion) -> list[InferRequest]:
    """Return a request to the model for each prompt."""
    prompts = asked.prompts if asked.chat is None else (_rendered(version, asked.chat),)
    return [_infer_request(asked, version, prompt) for prompt in prompts]


def _rendered(version: ModelVersion, chat: Chat) -> str:
    assert version.text is not None
    return version.text.render_chat(
        chat.messages,
        tools=chat.tools,
        add_generation_prompt=chat.add_generation_prompt,
        variables=chat.variables,
    )


def _infer_request(asked: GenerationRequest, version: ModelVersion, prompt: Prompt) -> InferRequest:
    """Return the request to the model; what the model has no input for is left out."""
    sampling = asked.sampling
    if asked.chat is not None and asked.chat.tool_use is ToolUse.AUTO:
        sampling = shows_special_tokens(version.openai.tool_call_parser) | sampling
    inputs = llm_request_inputs(
        LlmRequest(
            text=prompt if isinstance(prompt, str) else "",
            tokens=None if isinstance(prompt, str) else prompt,
            stream=asked.stream,
            sampling=sampling,
            exclude_input=True,
            finish_reason=True,
            logprobs=asked.logprobs,
            num_input_tokens=True,
            num_output_tokens=True,
        )
    )
    infer = InferRequest(version.name)
    known = version.spec.inputs
    infer.inputs = {name: tensor for name, tensor in inputs.items() if name in known}
    return infer


def _answer(asked: GenerationRequest, version: ModelVersion, header: Header) -> OpenAiAnswer:
    chat = asked.chat
    if chat is None:
        begins = [each if asked.echo and isinstance(each, str) else "" for each in asked.prompts]
        return CompletionAnswer(
            header,
            begins=begins,
            n=asked.n,
            include_usage=asked.include_usage,
            logprobs=asked.logprobs,
        )
    parser = version.openai.tool_call_parser
    return ChatAnswer(
        header,
        n=asked.n,
        include_usage=asked.include_usage,
        logprobs=asked.logprobs,
        tool_use=chat.tool_use,
        parallel_tool_calls=chat.parallel_tool_calls,
        make_reader=lambda: make_reader(
            chat.tool_use, chat.tool_name, parser, lambda: _call_id(parser)
        ),
    )


def _call_id(parser: str) -> str:
    """Return the id of a call; Mistral's templates take nine letters and digits alone."""
    return uuid4().hex[:9] if parser == "mistral" else f"call_{uuid4().hex[:24]}"
