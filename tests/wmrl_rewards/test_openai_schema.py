"""JSON schemas on the wire: sent where they are taken, left out where they are refused, no answer lost."""

import json
import threading

import pytest

from tests.endpoint import NOW, completion, echo, say, serving
from wmrl_rewards import LanguageModelWorldModel, PredictionRequest
from wmrl_rewards.language_models import Generation, OpenAIModel, Sampling, takes_schema
from wmrl_rewards.world_models.prompts import SCHEMA

ASKED = Sampling(max_new_tokens=9, temperature=0, seed=5, schema={"type": "object"})
SENT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
}


@pytest.fixture
def serve():
    with serving() as start:
        yield start


def refusing(status, text):
    """Takes everything but a schema."""

    def answer(body, attempt):
        return (status, {}, text) if "response_format" in body else echo(body, attempt)

    return answer


def plain(body):
    return {name: value for name, value in body.items() if name != "response_format"}


def test_a_schema_is_sent_as_it_is_and_only_where_there_is_one(serve):
    server = serve(echo)
    model = OpenAIModel(server.url, "wm")
    assert takes_schema(model)
    model.generate(say("Hi"), ASKED)
    model.generate(say("Hi"), Sampling(max_new_tokens=9, temperature=0, seed=5))
    first, second = server.bodies
    assert first["response_format"] == SENT
    assert plain(first) == second


def test_none_is_sent_where_the_user_says_so(serve):
    server = serve(echo)
    model = OpenAIModel(server.url, "wm", takes_schema=False)
    assert not takes_schema(model)
    model.generate(say("Hi"), ASKED)
    assert "response_format" not in server.bodies[0]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '{"error": {"message": "response_format is not supported"}}'),
        (400, '{"message": "Failed to parse grammar"}'),
        (400, ""),
        (422, '{"detail": [{"loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]}'),
        (422, "<html>no</html>"),
        (501, b"\xff"),
    ],
)
def test_a_server_that_refuses_schemas_is_asked_without_from_then_on(serve, status, text):
    server = serve(refusing(status, text))
    model = OpenAIModel(server.url, "wm", max_retries=0, max_concurrency=1)
    assert model.generate(say("a", "b"), ASKED) == [
        [Generation("You said: a")],
        [Generation("You said: b")],
    ]
    model.generate(say("c"), ASKED)
    assert ["response_format" in body for body in server.bodies] == [True, False, False, False]
    assert plain(server.bodies[0]) == server.bodies[1]


def test_many_refusals_at_once_lose_and_swap_nothing(serve):
    all_here = threading.Barrier(16)

    def answer(body, attempt):
        if "response_format" in body:
            all_here.wait(10)  # the refusals come while nobody knows of the others
            return 400, {}, "no"
        return echo(body, attempt)

    server = serve(answer)
    texts = [str(number) for number in range(16)]
    replies = OpenAIModel(server.url, "wm", max_retries=0, max_concurrency=16).generate(say(*texts), ASKED)
    assert replies == [[Generation(f"You said: {text}")] for text in texts]
    assert len(server.bodies) == 32


def test_each_server_is_known_by_itself(serve):
    old, new = serve(refusing(400, "what is response_format?")), serve(echo)
    model = OpenAIModel([old.url, new.url], "wm", max_retries=0, max_concurrency=1)
    texts = [str(number) for number in range(8)]
    assert model.generate(say(*texts), ASKED) == [[Generation(f"You said: {text}")] for text in texts]
    assert ["response_format" in body for body in old.bodies] == [True] + [False] * 4
    assert all("response_format" in body for body in new.bodies)


def test_a_refusal_for_another_reason_is_no_verdict_on_schemas(serve):
    def answer(body, attempt):
        long = body["messages"][-1]["content"] == "long"
        return (400, {}, '{"message": "context is too long"}') if long else echo(body, attempt)

    server = serve(answer)
    model = OpenAIModel(server.url, "wm", max_concurrency=1)
    (too_long,), (other,) = model.generate(say("long", "short"), ASKED)
    assert too_long.error.endswith("answers 400: context is too long")
    assert other == Generation("You said: short")
    assert ["response_format" in body for body in server.bodies] == [True, False, True]


def test_a_refusal_and_then_a_failure_are_tried_again(serve):
    def answer(body, attempt):
        if "response_format" in body:
            return 400, {}, "no"
        return (503, NOW, "busy") if attempt == 0 else echo(body, attempt)

    server = serve(answer)
    assert OpenAIModel(server.url, "wm").generate(say("Hi"), ASKED) == [[Generation("You said: Hi")]]
    assert ["response_format" in body for body in server.bodies] == [True, False, True, False]


def test_a_passing_failure_says_nothing_of_schemas(serve):
    server = serve(lambda body, attempt: (429, NOW, "busy") if attempt == 0 else echo(body, attempt))
    OpenAIModel(server.url, "wm").generate(say("Hi"), ASKED)
    assert all(body["response_format"] == SENT for body in server.bodies)


def object_of(score):
    fields = {"status": "ok", "error_type": None, "error_line": None, "value": score, "feedback": "done"}
    return json.dumps(fields)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_world_model_asks_by_schema_and_keeps_scores_and_order_either_way(serve, refuses):
    def answer(body, attempt):
        if refuses and "response_format" in body:
            return 422, {}, "unknown field"
        return completion(object_of(int(body["messages"][-1]["content"].split("x = ")[1][:2]) / 100))

    server = serve(answer)
    world_model = LanguageModelWorldModel(OpenAIModel(server.url, "wm"), predict="percentile")
    predictions = world_model.predict([PredictionRequest("T", f"x = {n}") for n in range(10, 40)])
    assert [prediction.score for prediction in predictions] == [n / 100 for n in range(10, 40)]
    sent = [body["response_format"] for body in server.bodies if "response_format" in body]
    assert sent
    assert all(found["json_schema"]["schema"] == SCHEMA for found in sent)


def test_a_server_that_takes_the_schema_and_ignores_it_gives_no_invented_score(serve):
    said = iter(
        ["0.9", '{"status": "ok", "value": "high"}', '{"status": "ok"}', "status: ok\npercentile: 0.5"]
    )
    server = serve(lambda body, attempt: completion(next(said)))
    world_model = LanguageModelWorldModel(
        OpenAIModel(server.url, "wm", max_concurrency=1), predict="percentile", retries=0
    )
    predictions = world_model.predict([PredictionRequest("T", f"x = {n}") for n in range(4)])
    assert [prediction.score for prediction in predictions] == [None, None, None, 0.5]
    assert all(prediction.error for prediction in predictions[:3])
