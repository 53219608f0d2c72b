"""The official OpenAI client against a node: what works there must work here.

The agents behind the node do what the message says: see `tests/tests/openai`, which runs this.

    python openai_client.py BASE_URL SCENARIO...    `holds: SCENARIO` for each, exit 0 if all did
"""

import asyncio
import base64
import json
import sys
import uuid

import openai

WIDE = "aß語𝄞 "


def user(content: object) -> list[dict]:
    return [{"role": "user", "content": content}]


def client_at(base_url: str, **options: object) -> openai.OpenAI:
    headers = {"x-user-id": options.pop("who", "ann")}
    return openai.OpenAI(base_url=base_url, api_key="none", default_headers=headers, **options)


def text_of(chunks: object) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def refused(kind: type, code: str, status: int, **request: object) -> openai.APIStatusError:
    """Asks, and must be refused so."""
    client = request.pop("client")
    try:
        client.chat.completions.create(**{"model": "agent/a", "messages": user("say hi")} | request)
    except kind as error:
        assert (error.code, error.status_code) == (code, status), (error.code, error.status_code, error.body)
        assert error.message and error.body["message"], error.body
        return error
    raise AssertionError(f"not refused: {request}")


# === what works ===

def an_answer_at_once(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="agent/a", messages=user(f"say {WIDE}"), max_tokens=5, temperature=0)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion", answer
    assert answer.model == "agent/a" and answer.created > 1_600_000_000, answer
    assert answer._request_id and answer.id == f"chatcmpl-{answer._request_id}", answer._request_id
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == WIDE, choice
    assert (choice.index, choice.finish_reason, choice.message.refusal) == (0, "stop", None), choice
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 4, 7), usage
    # An agent that counts nothing, and one of the node's own.
    assert client.chat.completions.create(model="agent/a", messages=user("count nothing")).usage is None
    echo = client.chat.completions.create(model="agent/echo", messages=user("hello there"))
    assert echo.choices[0].message.content == "hello there" and echo.usage is None, echo


def an_answer_piece_by_piece(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="agent/a", messages=user(f"say {WIDE * 50}"), stream=True))
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk" and chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert text_of(chunks) == WIDE * 50 and len(chunks) >= 3, chunks
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"], reasons
    assert all(chunk.usage is None for chunk in chunks)
    chunks = list(client.chat.completions.create(
        model="agent/a", messages=user("say hi"), stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 7, chunks[-1]
    assert text_of(client.chat.completions.create(model="agent/echo", messages=user("hello there"), stream=True)) == "hello there"


def the_wire_is_openais(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
            model="agent/a", messages=user("say hi"), stream=True) as response:
        assert response.headers["content-type"] == "text/event-stream", response.headers
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]", lines
    assert [json.loads(line[6:])["object"] for line in lines[:-1]] == ["chat.completion.chunk"] * (len(lines) - 1)
    raw = client.chat.completions.with_raw_response.create(model="agent/a", messages=user("say hi"))
    assert raw.headers["x-session-id"] and raw.parse().choices[0].message.content == "hi"


def the_clients_own_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="agent/a", messages=user("say hello")) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds, kinds
    assert answer.choices[0].message.content == "hello" and answer.choices[0].finish_reason == "stop", answer


def the_async_client(base_url: str) -> None:
    async def all_at_once() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
            async def one(n: int) -> str:
                stream = await client.chat.completions.create(
                    model="agent/a", messages=user(f"say {n} {WIDE}"), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            said = await asyncio.gather(*(one(n) for n in range(20)))
            assert said == [f"{n} {WIDE}" for n in range(20)], said
            answer = await client.chat.completions.create(model="agent/a", messages=user("say hi"))
            assert answer.choices[0].message.content == "hi", answer
    asyncio.run(all_at_once())


def reasoning_is_delivered_but_not_recorded(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="agent/a", messages=user("think first"))
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("so", "hm, "), message
    chunks = list(client.chat.completions.create(model="agent/a", messages=user("think first"), stream=True))
    thoughts = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks]
    assert "".join(thoughts) == "hm, " and text_of(chunks) == "so", chunks


def earlier_messages_go_along(client: openai.OpenAI) -> None:
    earlier = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "grüß dich"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    answer = client.chat.completions.create(model="agent/a", messages=earlier + user("recite"))
    assert json.loads(answer.choices[0].message.content) == earlier, answer
    alone = client.chat.completions.create(model="agent/a", messages=user("recite"))
    assert alone.choices[0].message.content == "null", alone


def a_session_goes_on(client: openai.OpenAI) -> None:
    session = f"s-{uuid.uuid4().hex[:12]}"

    def say(messages: list[dict], **options: object) -> tuple[str, str]:
        raw = client.chat.completions.with_raw_response.create(
            model="agent/a", messages=messages, extra_headers={"x-session-id": session}, **options)
        return raw.headers["x-session-id"], raw.parse().choices[0].message.content
    assert say(user("session")) == (session, session)
    # Only the last message counts: the conversation is the gateway's.
    assert say([{"role": "system", "content": "x"}] + user("session")) == (session, session)
    assert say([{"role": "system", "content": "x"}] + user("recite")) == (session, "null")
    # Somebody else's is not found, and another agent is no member.
    stranger = client.with_options(default_headers={"x-user-id": "bob"})
    header = {"x-session-id": session}
    refused(openai.NotFoundError, "not_found", 404, client=stranger, extra_headers=header)
    refused(openai.ConflictError, "agent_not_in_session", 409, client=client, model="agent/echo", extra_headers=header)
    bad = refused(openai.BadRequestError, "invalid_message", 400, client=client, extra_headers={"x-session-id": "a b"})
    assert bad.param == "x-session-id", bad.body


def models_are_agents(client: openai.OpenAI) -> None:
    models = client.models.list()
    assert "agent/a" in [model.id for model in models], models
    assert all(model.owned_by == "turnway" and model.object == "model" for model in models), models
    assert client.models.retrieve("agent/a").id == "agent/a"
    for other in ["gpt-5", "agent/nobody"]:
        try:
            client.models.retrieve(other)
            raise AssertionError(f"there is no {other}")
        except openai.NotFoundError as error:
            assert error.code == "model_not_found", error.body


# === what does not ===

def a_bad_request_is_refused(client: openai.OpenAI) -> None:
    for model in ["gpt-5", "a", "agent/nobody"]:
        unknown = refused(openai.NotFoundError, "model_not_found", 404, client=client, model=model)
        assert (unknown.type, unknown.param) == ("invalid_request_error", "model"), unknown.body
    refused(openai.NotFoundError, "model_not_found", 404, client=client, model="gpt-5", stream=True)
    for request in [{"messages": []}, {"messages": user("")}, {"messages": [{"role": "assistant", "content": "x"}]}]:
        bad = refused(openai.BadRequestError, "invalid_message", 400, client=client, **request)
        assert bad.param and bad.param.startswith("messages"), bad.body
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for request in [{"n": 2}, {"tools": [tool]}, {"response_format": {"type": "json_object"}}]:
        bad = refused(openai.BadRequestError, "unsupported_parameter", 400, client=client, **request)
        assert bad.param in request, bad.body
    for long in [user("x" * 70_000), user("x" * 600_000), user("x" * 17_000_000)]:
        refused(openai.BadRequestError, "context_length_exceeded", 400, client=client, messages=long)


def an_agents_failure_is_told_once(client: openai.OpenAI) -> None:
    for stream in (False, True):
        for what, code, status in [("fail", "agent_error", 502), ("away", "agent_unavailable", 503)]:
            error = refused(openai.InternalServerError, code, status, client=client, messages=user(what), stream=stream)
            assert error.type == "server_error" and error.request_id, error.body
            assert what == "away" or error.body["agent_code"] == "quota", error.body
    # After the first word it comes in the stream.
    said = []
    try:
        for chunk in client.chat.completions.create(model="agent/a", messages=user("break"), stream=True):
            said.append(chunk)
        raise AssertionError("an answer that broke off is not whole")
    except openai.APIError as error:
        assert error.code == "agent_error" and not isinstance(error, openai.APIStatusError), error
    assert text_of(said) == "so far", said


def a_call_made_again_is_the_same(client: openai.OpenAI) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    request = {"model": "agent/a", "messages": [{"role": "system", "content": "x"}] + user("say once"), "extra_headers": key}
    first = client.chat.completions.create(**request)
    again = client.chat.completions.create(**request)
    assert (first.id, first.choices) == (again.id, again.choices), (first, again)
    chunks = list(client.chat.completions.create(stream=True, **request))
    assert chunks[0].id == first.id and text_of(chunks) == "once", chunks
    other = refused(openai.ConflictError, "idempotency_conflict", 409, client=client, extra_headers=key)
    assert other.response.headers["x-should-retry"] == "false"
    # The same words after another history are another call.
    refused(openai.ConflictError, "idempotency_conflict", 409, client=client, extra_headers=key, messages=user("say once"))
    # Keys are each user's own.
    bob = client.with_options(default_headers={"x-user-id": "bob"})
    assert bob.chat.completions.create(**request).id != first.id


SCENARIOS = [
    an_answer_at_once, an_answer_piece_by_piece, the_wire_is_openais, the_clients_own_helper,
    reasoning_is_delivered_but_not_recorded, earlier_messages_go_along, a_session_goes_on, models_are_agents,
    a_bad_request_is_refused, an_agents_failure_is_told_once, a_call_made_again_is_the_same,
]


# === run beside a test that does something to the node ===

def hang_up_streamed(client: openai.OpenAI, *headers: str) -> None:
    """Reads the first word, hangs up."""
    extra = dict(header.split("=") for header in headers)
    stream = client.chat.completions.create(
        model="agent/a", messages=user("begin"), stream=True, extra_headers=extra)
    assert text_of([next(stream), next(stream)]) == "begun"
    stream.close()


def wait(client: openai.OpenAI) -> None:
    """Waits for an answer at once."""
    client.chat.completions.create(model="agent/a", messages=user("begin"))


def cut_off(client: openai.OpenAI) -> None:
    """Reads while the node is killed: an error, and no end."""
    said = []
    try:
        for chunk in client.chat.completions.create(model="agent/a", messages=user("begin"), stream=True):
            said.append(chunk)
            if text_of(said) == "begun" and len(said) == 2:
                print("begun", flush=True)
        raise AssertionError(f"an answer that was cut off is not whole: {said}")
    except openai.APIConnectionError:
        pass
    assert all(chunk.choices[0].finish_reason is None for chunk in said), said


def persistent(client: openai.OpenAI, key: str) -> None:
    """Tries again by itself, whatever happens to the node."""
    history = [{"role": "system", "content": "canary"}]
    answer = client.with_options(max_retries=20).chat.completions.create(
        model="agent/a", messages=history + user("begin"), extra_headers={"Idempotency-Key": key})
    print(answer.choices[0].message.content)


def again(client: openai.OpenAI, key: str) -> None:
    """The same call, streamed: each piece of text a line, or the error."""
    history = [{"role": "system", "content": "canary"}]
    try:
        for chunk in client.chat.completions.create(
                model="agent/a", messages=history + user("begin"), extra_headers={"Idempotency-Key": key}, stream=True):
            if chunk.choices[0].delta.content:
                print(chunk.choices[0].delta.content, flush=True)
    except openai.APIStatusError as error:
        print(f"{error.status_code} {error.code}")


def pictures(client: openai.OpenAI) -> None:
    """A picture twice, and a document: as the client's users send them."""
    url = data_url("image/png", b"turnway-" * (5 * 1024 * 1024 // 8))
    picture = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    document = {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url("application/pdf", b"%PDF-1.7")}}
    history = user([{"type": "text", "text": "this"}, picture]) + [{"role": "assistant", "content": "a picture"}]
    question = user([{"type": "text", "text": "and these?"}, picture, document])
    answer = client.chat.completions.create(model="agent/a", messages=history + question)
    print(answer.choices[0].message.content)


def data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def main() -> None:
    base_url, *names = sys.argv[1:]
    if names:
        scenario, *args = names
        with client_at(base_url) as client:
            globals()[scenario](client, *args)
        return
    with client_at(base_url) as client:
        for scenario in SCENARIOS:
            scenario(client)
            print(f"holds: {scenario.__name__}")
    the_async_client(base_url)
    print(f"holds: {the_async_client.__name__}")


main()
