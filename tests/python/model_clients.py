"""The official clients of OpenAI and Anthropic against the models route of a node, with a scripted model behind it.

    python model_clients.py ORIGIN API_KEY    `holds: SCENARIO` for each, exit 0 if all did

For each request the line `body: {"path", "model", "sha256", "usage_is_added"}` tells which bytes the client has sent;
`tests/tests/models` compares them with those that the model got.
"""

import asyncio
import hashlib
import json
import sys

import anthropic
import httpx2
import openai

TEXT = "grüß dich"
STREAMED = "grüß dich 語𝄞"
MESSAGES = [{"role": "user", "content": "hi"}]


def note(request: httpx2.Request) -> None:
    """Prints which bytes a request has."""
    if request.method != "POST":
        return
    body = request.read()
    asked = json.loads(body)
    asks = (asked.get("stream_options") or {}).get("include_usage") is True
    added = request.url.path.endswith("/chat/completions") and asked.get("stream") is True and not asks
    print("body: " + json.dumps({
        "path": request.url.path, "model": asked["model"], "sha256": hashlib.sha256(body).hexdigest(),
        "usage_is_added": added}), flush=True)


async def note_async(request: httpx2.Request) -> None:
    note(request)


def openai_at(origin: str, key: str) -> openai.OpenAI:
    http = httpx2.Client(event_hooks={"request": [note]}, timeout=30)
    return openai.OpenAI(base_url=f"{origin}/v1", api_key=key, http_client=http, max_retries=0)


def anthropic_at(origin: str, key: str) -> anthropic.Anthropic:
    http = httpx2.Client(event_hooks={"request": [note]}, timeout=30)
    return anthropic.Anthropic(base_url=origin, api_key=key, http_client=http, max_retries=0)


# === OpenAI ===

def chat_at_once(origin: str, key: str) -> None:
    answer = openai_at(origin, key).chat.completions.create(model="gpt", messages=MESSAGES, temperature=0.5)
    assert answer.id == "c1" and answer.choices[0].message.content == TEXT, answer
    assert answer.choices[0].finish_reason == "stop", answer
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 12, 42), usage
    assert usage.prompt_tokens_details.cached_tokens == 10, usage


def chat_streamed(origin: str, key: str) -> None:
    chunks = list(openai_at(origin, key).chat.completions.create(model="gpt", messages=MESSAGES, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == STREAMED, chunks
    # The usage event is the gateway's own.
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), chunks
    assert chunks[-1].choices[0].finish_reason == "stop", chunks


def chat_streamed_with_usage(origin: str, key: str) -> None:
    chunks = list(openai_at(origin, key).chat.completions.create(
        model="gpt", messages=MESSAGES, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 42, chunks[-1]


def responses_at_once(origin: str, key: str) -> None:
    answer = openai_at(origin, key).responses.create(model="gpt", input="hi")
    assert answer.id == "r1" and answer.status == "completed" and answer.output_text == TEXT, answer
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (30, 12), answer.usage


def responses_streamed(origin: str, key: str) -> None:
    events = list(openai_at(origin, key).responses.create(model="gpt", input="hi", stream=True))
    assert [event.type for event in events] == [
        "response.created", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.completed"], events
    assert events[3].delta == STREAMED and events[4].response.usage.total_tokens == 42, events


def embeddings(origin: str, key: str) -> None:
    answer = openai_at(origin, key).embeddings.create(model="gpt", input=["hi", "ho"], encoding_format="float")
    assert [one.embedding for one in answer.data] == [[0.5, -1e-7], [0.25, 2]], answer
    assert answer.usage.total_tokens == 8, answer


def models_are_listed(origin: str, key: str) -> None:
    ids = {model.id for model in openai_at(origin, key).models.list()}
    assert {"gpt", "org/claude", "agent/echo"} <= ids and "other" not in ids, ids


def chat_errors(origin: str, key: str) -> None:
    client = openai_at(origin, key)

    def fails(kind: type, status: int, code: str, **request: object) -> openai.APIStatusError:
        try:
            client.chat.completions.create(**{"model": "gpt", "messages": MESSAGES} | request)
        except kind as error:
            assert (error.status_code, error.code) == (status, code), (error.status_code, error.body)
            return error
        raise AssertionError(f"not refused: {request}")

    def user(text: str) -> list[dict]:
        return [{"role": "user", "content": text}]
    fails(openai.BadRequestError, 400, "bad_words", messages=user("please-refuse"))
    hidden = fails(openai.InternalServerError, 502, "upstream_unauthorized", messages=user("please-unauthorized"))
    assert "wrong key" not in str(hidden.body), hidden.body
    try:
        for _ in client.chat.completions.create(model="gpt", messages=user("please-cut"), stream=True):
            pass
        raise AssertionError("an answer that was cut is not whole")
    except openai.APIError as error:
        assert error.code == "upstream_truncated" and not isinstance(error, openai.APIStatusError), error


def unknown_model_and_key(origin: str, key: str) -> None:
    # Nothing of this reaches a model: these clients note no body.
    client = openai.OpenAI(base_url=f"{origin}/v1", api_key=key, max_retries=0)
    for ask in [
        lambda: client.chat.completions.create(model="none", messages=MESSAGES),
        lambda: client.responses.create(model="none", input="hi"),
        lambda: client.embeddings.create(model="none", input="hi"),
    ]:
        try:
            ask()
            raise AssertionError("there is no such model")
        except openai.NotFoundError as error:
            assert error.code == "model_not_found", error.body
    for wrong in [
        lambda: client.with_options(api_key="sk-wrong").chat.completions.create(model="gpt", messages=MESSAGES),
        lambda: client.with_options(api_key="sk-wrong").embeddings.create(model="gpt", input="hi"),
    ]:
        try:
            wrong()
            raise AssertionError("there is no such key")
        except openai.AuthenticationError:
            pass
    other = anthropic.Anthropic(base_url=origin, api_key=key, max_retries=0)
    try:
        other.messages.create(model="none", max_tokens=16, messages=MESSAGES)
        raise AssertionError("there is no such model")
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error", error.body
    try:
        other.with_options(api_key="sk-wrong").messages.create(model="gpt", max_tokens=16, messages=MESSAGES)
        raise AssertionError("there is no such key")
    except anthropic.AuthenticationError as error:
        assert error.body["type"] == "error", error.body


def async_clients_at_a_time(origin: str, key: str) -> None:
    async def all_at_once() -> None:
        # One after the other as to their start, so that the order of the printed bodies is that of the requests.
        async with httpx2.AsyncClient(event_hooks={"request": [note_async]}, timeout=30) as http:
            client = openai.AsyncOpenAI(base_url=f"{origin}/v1", api_key=key, http_client=http, max_retries=0)
            first = await client.chat.completions.create(
                model="gpt", messages=MESSAGES, stream=True, stream_options={"include_usage": True})
            second = await client.responses.create(model="gpt", input="hi")
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in first if chunk.choices])
            assert text == STREAMED and second.output_text == TEXT, (text, second)
    asyncio.run(all_at_once())


# === Anthropic ===

def messages_at_once(origin: str, key: str) -> None:
    client = anthropic_at(origin, key)
    for model in ["gpt", "org/claude"]:
        answer = client.messages.create(model=model, max_tokens=1024, messages=MESSAGES)
        assert answer.id == "m1" and answer.content[0].text == TEXT and answer.stop_reason == "end_turn", answer
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (20, 12), answer.usage
        assert answer.usage.cache_read_input_tokens == 10, answer.usage


def messages_streamed(origin: str, key: str) -> None:
    client = anthropic_at(origin, key)
    with client.messages.stream(model="gpt", max_tokens=1024, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == STREAMED and final.stop_reason == "end_turn" and final.usage.output_tokens == 12, (text, final)
    # Other clients of Anthropic's add this query.
    events = list(client.beta.messages.create(
        model="gpt", max_tokens=1024, messages=MESSAGES, stream=True, extra_query={"beta": "true"}))
    assert events[-1].type == "message_stop", events


def messages_errors(origin: str, key: str) -> None:
    client = anthropic_at(origin, key)

    def ask(text: str, **options: object) -> object:
        return client.messages.create(
            model="gpt", max_tokens=16, messages=[{"role": "user", "content": text}], **options)
    try:
        ask("please-refuse")
        raise AssertionError("not refused")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["message"] == "bad words", error.body
    try:
        ask("please-unauthorized")
        raise AssertionError("not refused")
    except anthropic.InternalServerError as error:
        assert error.status_code == 502 and "wrong key" not in str(error.body), error.body
    try:
        for _ in ask("please-cut", stream=True):
            pass
        raise AssertionError("an answer that was cut is not whole")
    except anthropic.APIStatusError as error:
        # The client makes a status error of an `error` event, with the status of the stream.
        assert error.body["type"] == "error", error.body


SCENARIOS = [
    chat_at_once, chat_streamed, chat_streamed_with_usage, responses_at_once, responses_streamed, embeddings,
    models_are_listed, chat_errors, unknown_model_and_key, async_clients_at_a_time, messages_at_once,
    messages_streamed, messages_errors,
]


def main() -> None:
    origin, key = sys.argv[1:3]
    for scenario in SCENARIOS:
        scenario(origin, key)
        print(f"holds: {scenario.__name__}", flush=True)


main()
