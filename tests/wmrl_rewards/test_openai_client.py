"""The endpoint client against a real HTTP server on the loopback interface."""

import asyncio
import sys
import threading
import urllib.request

import pytest

from tests.endpoint import NOW, completion, echo, say, serving
from wmrl_envs.errors import ConfigError, MissingExtraError, WMRLError
from wmrl_rewards.language_models import Generation, LanguageModel, OpenAIModel, Sampling


@pytest.fixture
def serve():
    with serving() as start:
        yield start


def test_replies_come_in_the_order_of_the_conversations(serve):
    server = serve(echo)
    model = OpenAIModel(server.url, "wm")
    assert isinstance(model, LanguageModel)
    texts = [f"text {number}" for number in range(20)]
    replies = model.generate(say(*texts), Sampling(), samples=2)
    assert replies == [[Generation(f"You said: {text}")] * 2 for text in texts]
    assert len(server.bodies) == 40
    assert model.generate([], Sampling()) == []


def test_the_request_says_what_was_asked(serve):
    server = serve(echo)
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    model = OpenAIModel(server.url + "/", "wm", extra=extra)
    model.generate(say("Hi"), Sampling(max_new_tokens=7, temperature=0.5, top_p=0.9))
    assert server.bodies == [
        {
            "model": "wm",
            "messages": say("Hi")[0],
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]
    path, headers = server.headers[0]
    assert path == "/v1/chat/completions"
    assert headers["content-type"] == "application/json"
    assert "authorization" not in headers


def test_seeds_depend_on_seed_question_and_number_of_the_sample_alone(serve):
    def seeds(conversations, seed, samples=1):
        server = serve(echo)
        OpenAIModel(server.url, "wm").generate(conversations, Sampling(seed=seed), samples)
        found = {}
        for body in server.bodies:
            found.setdefault(body["messages"][-1]["content"], set()).add(body["seed"])
        return found

    whole = seeds(say("a", "b"), 3, samples=2)
    assert len(whole["a"] | whole["b"]) == 4
    assert all(0 <= seed < 2**31 for seed in whole["a"])
    assert seeds(say("b"), 3, samples=2) == {"b": whole["b"]}
    assert seeds(say("a", "b", "a"), 3)["a"] == whole["a"]
    assert not seeds(say("a"), 4, samples=2)["a"] & whole["a"]


def test_no_more_requests_at_a_time_than_allowed(serve):
    arrived = threading.Barrier(3)

    def answer(body, attempt):
        arrived.wait(timeout=10)  # passes only when three requests are in flight
        return echo(body, attempt)

    server = serve(answer)
    OpenAIModel(server.url, "wm", max_concurrency=3).generate(say(*"abcdef"), Sampling())
    assert server.most == 3


def test_a_reply_cut_off_is_not_finished(serve):
    server = serve(lambda body, attempt: completion("Once upon", "length"))
    assert OpenAIModel(server.url, "wm").generate(say("Hi"), Sampling()) == [
        [Generation("Once upon", finished=False)]
    ]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again(serve, status):
    def answer(body, attempt):
        return (status, NOW, "busy") if attempt < 2 else echo(body, attempt)

    server = serve(answer)
    assert OpenAIModel(server.url, "wm").generate(say("Hi"), Sampling()) == [[Generation("You said: Hi")]]
    assert len(server.bodies) == 3


def test_one_bad_reply_costs_only_itself_after_bounded_attempts(serve):
    def answer(body, attempt):
        bad = body["messages"][-1]["content"] == "bad"
        return (500, NOW, '{"error": {"message": "out of\\nmemory"}}') if bad else echo(body, attempt)

    server = serve(answer)
    good, bad, other = OpenAIModel(server.url, "wm", max_retries=2).generate(say("a", "bad", "b"), Sampling())
    assert [good, other] == [[Generation("You said: a")], [Generation("You said: b")]]
    problem = f"{server.url}/chat/completions answers 500: out of memory"
    assert bad == [Generation("", finished=False, error=problem)]
    assert sum(body["messages"][-1]["content"] == "bad" for body in server.bodies) == 3


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((400, {}, '{"message": "context is too long"}'), "answers 400: context is too long"),
        ((422, {}, "<html>no</html>"), "answers 422: <html>no</html>"),
        ((400, {}, b"\xff\xfe"), "answers 400"),
        ((400, {}, ""), "answers 400: Bad Request"),
        ((302, {"Location": "http://127.0.0.1:9/"}, ""), "answers 302"),
        ((200, {}, ""), "not a chat completion"),
        ((200, {}, "[]"), "not a chat completion"),
        ((200, {}, '{"choices": []}'), "not a chat completion"),
        ((200, {}, '{"choices": [{"message": null}]}'), "not a chat completion"),
        ((200, {}, '{"choices": [{"message": {"content": null}, "finish_reason": "x"}]}'), "has no text"),
        (completion(None, "tool_calls"), r"has no text \(finish_reason tool_calls\)"),
        (completion(["parts"]), "has no text"),
    ],
)
def test_what_no_retry_would_mend_is_an_error_at_once(serve, answer, problem):
    server = serve(lambda body, attempt: answer)
    ((reply,),) = OpenAIModel(server.url, "wm").generate(say("Hi"), Sampling())
    assert (reply.text, reply.finished) == ("", False)
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(reply.error)
    assert len(server.bodies) == 1


def test_a_server_that_hangs_up_or_stays_silent_is_no_answer(serve):
    quiet = threading.Event()

    def answer(body, attempt):
        if body["messages"][-1]["content"] == "silent":
            quiet.wait(10)
        return None

    server = serve(answer)
    model = OpenAIModel(server.url, "wm", timeout_s=0.2, max_retries=0)
    replies = model.generate(say("silent", "hang up"), Sampling())
    quiet.set()
    assert all(reply.error.startswith(f"No answer from {server.url}") for (reply,) in replies)


def cut_off(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')
    handler.close_connection = True


def test_an_answer_that_breaks_off_is_asked_for_again(serve):
    server = serve(lambda body, attempt: cut_off if attempt == 0 else echo(body, attempt))
    assert OpenAIModel(server.url, "wm").generate(say("Hi"), Sampling()) == [[Generation("You said: Hi")]]


def test_an_answer_that_drips_is_not_waited_for(serve):
    done = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        while not done.wait(0.01):
            handler.wfile.write(b" ")

    server = serve(lambda body, attempt: drip)
    ((reply,),) = OpenAIModel(server.url, "wm", timeout_s=0.3, max_retries=0).generate(say("Hi"), Sampling())
    done.set()
    assert reply.error.startswith(f"No answer from {server.url}")


def test_several_servers_share_the_work(serve):
    servers = [serve(echo) for _ in range(4)]
    model = OpenAIModel([server.url for server in servers], "wm")
    texts = [str(number) for number in range(40)]
    assert model.generate(say(*texts), Sampling()) == [[Generation(f"You said: {text}")] for text in texts]
    assert [len(server.bodies) for server in servers] == [10] * 4


def test_what_dead_servers_do_not_answer_the_living_one_does(serve):
    hangs_up, refuses = serve(lambda body, attempt: None), serve(lambda body, attempt: (503, NOW, "busy"))
    gone, living = serve(echo), serve(echo)
    gone.shutdown()
    gone.server_close()
    model = OpenAIModel([server.url for server in (hangs_up, refuses, gone, living)], "wm", max_concurrency=8)
    texts = [str(number) for number in range(60)]
    replies = model.generate(say(*texts), Sampling())
    assert replies == [[Generation(f"You said: {text}")] for text in texts]
    assert sorted(body["messages"][-1]["content"] for body in living.bodies) == sorted(texts)


def test_nothing_is_taken_from_the_environment(serve, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    server = serve(echo)
    OpenAIModel(server.url, "wm").generate(say("Hi"), Sampling())
    assert "secret" not in repr(server.headers)


def test_it_works_where_an_event_loop_runs(serve):
    server = serve(echo)

    async def in_a_notebook():
        return OpenAIModel(server.url, "wm").generate(say("Hi"), Sampling())

    assert asyncio.run(in_a_notebook()) == [[Generation("You said: Hi")]]
    refusing = serve(lambda body, attempt: (404, {}, "No such model."))

    async def in_vain():
        return OpenAIModel(refusing.url, "wm").generate(say("Hi"), Sampling())

    with pytest.raises(WMRLError, match="answers 404: No such model"):
        asyncio.run(in_vain())


def test_without_the_package_the_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrl\[openai\]'"):
        OpenAIModel("http://127.0.0.1:9/v1", "wm")


def test_nobody_there_is_no_answer(serve):
    server = serve(echo)
    url = server.url
    server.shutdown()
    server.server_close()
    ((reply,),) = OpenAIModel(url, "wm", max_retries=0).generate(say("Hi"), Sampling())
    assert reply.error.startswith(f"No answer from {url}/chat/completions: ")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_an_unknown_model_stops_at_once(serve, status):
    server = serve(lambda body, attempt: (status, {}, '{"error": {"message": "Not here."}}'))
    with pytest.raises(WMRLError, match=f"answers {status}: Not here."):
        OpenAIModel(server.url, "wm", max_concurrency=1).generate(say("a", "b"), Sampling())


def test_the_key_comes_from_the_environment_and_follows_no_redirect(serve, monkeypatch):
    monkeypatch.setenv("DEMO_KEY", "secret")
    other = serve(echo)
    server = serve(lambda body, attempt: (307, {"Location": other.url}, ""))
    model = OpenAIModel(server.url, "wm", api_key_env="DEMO_KEY")
    ((reply,),) = model.generate(say("Hi"), Sampling())
    assert server.headers[0][1]["authorization"] == "Bearer secret"
    assert "answers 307" in reply.error
    assert not other.bodies
    assert "secret" not in repr(vars(model))


def test_a_proxy_is_not_asked_for_this_machine(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert urllib.request.getproxies()["http"] == "http://127.0.0.1:9"
    server = serve(echo)
    ((reply,),) = OpenAIModel(server.url, "wm", max_retries=0).generate(say("Hi"), Sampling())
    assert reply.error is None


def test_tokens_are_estimated_from_above_for_plain_text():
    model = OpenAIModel("http://127.0.0.1:9/v1", "wm")
    assert [model.count_tokens(text) for text in ("", "abc", "abcd", "é")] == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"base_url": "127.0.0.1:8000"}, "base_url must look like http"),
        ({"base_url": "file:///etc/passwd"}, "base_url must look like http"),
        ({"base_url": ""}, "base_url must look like http"),
        ({"base_url": []}, "base_url must look like http"),
        ({"base_url": ["http://127.0.0.1:9/v1", "b"]}, "base_url must look like http.*, not 'b'"),
        (
            {"api_key_env": "NO_SUCH_KEY_ANYWHERE"},
            "which should hold the key, is not set",
        ),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"max_retries": -1}, "max_retries at least 0"),
        ({"max_concurrency": 0}, "max_concurrency at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        OpenAIModel(**({"base_url": "http://127.0.0.1:9/v1", "model": "wm"} | settings))
