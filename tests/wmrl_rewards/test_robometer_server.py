"""The client of Robometer's server against a real HTTP server on the loopback interface."""

import email
import io
import json
import threading
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tests.robots import rollout
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards import PredictionRequest, RobometerServer, check_world_model


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.asked.append((self.command, self.path, form(self.headers, body)))
        answer = server.answer(server.asked[-1][2], len(server.asked))
        if answer is None:  # hang up without a word
            self.close_connection = True
        elif callable(answer):
            answer(self)
        else:
            status, headers, text = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text if isinstance(text, bytes) else json.dumps(text).encode())

    do_GET = do_POST

    def log_message(self, *args):
        pass


def form(headers, body):
    """The samples of a form, their frames loaded as the real server does."""
    kind = headers.get("Content-Type")
    if kind is None:
        return []
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body, policy=HTTP)
    parts = {p.get_param("name", header="Content-Disposition"): p for p in message.iter_parts()}
    samples = []
    for name in (f"sample_{number}" for number in range(len(parts) // 2)):
        sample = json.loads(parts[name].get_payload(decode=True))
        key = sample["trajectory"]["frames"]["__numpy_file__"]
        file = io.BytesIO(parts[key].get_payload(decode=True))
        sample["trajectory"]["frames"] = np.load(file, allow_pickle=False)
        samples.append(sample)
    return samples


@pytest.fixture
def serve():
    servers = []

    def start(answer):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.answer, server.asked = answer, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def brightness(samples, attempt):
    """A model for the tests: progress is the brightness of a frame."""
    rows = [(s["trajectory"]["frames"].mean(axis=(1, 2, 3)) / 255).tolist() for s in samples]
    outputs = {"progress_pred": rows}
    return (
        200,
        {},
        {"outputs_preference": None, "outputs_progress": outputs, "outputs_success": {"success_probs": rows}},
    )


def dawn(length, top=255):
    """A rollout from black to white."""
    return np.broadcast_to(
        np.linspace(0, top, length).astype(np.uint8)[:, None, None, None], (length, 4, 6, 3)
    ).copy()


def ask(frames=None, task="make it light"):
    return PredictionRequest(task, frames=dawn(8) if frames is None else frames)


def client(url, **settings):
    return RobometerServer(url, **({"timeout_s": 5, "max_retries": 0, "pause_s": 0} | settings))


def test_eight_frames_go_there_and_eight_values_come_back(serve):
    server = serve(brightness)
    frames = dawn(15)
    (seen,) = client(server.url + "/").progress([ask(frames)])
    ((method, path, (sample,)),) = server.asked
    assert (method, path, sample["sample_type"]) == ("POST", "/evaluate_batch_npy", "progress")
    assert sample["trajectory"]["task"] == "make it light"
    assert sample["trajectory"]["frames_shape"] == [8, 4, 6, 3]
    assert np.array_equal(sample["trajectory"]["frames"], frames[::2])
    assert seen.values == pytest.approx((frames[::2].mean(axis=(1, 2, 3)) / 255).tolist())
    assert seen.success == seen.values


def test_batches_are_of_the_size_asked_for_and_answers_in_order(serve):
    server = serve(brightness)
    tops = [10, 250, 100, 200, 50]
    predictions = client(server.url, batch_size=2).predict([ask(dawn(8, top)) for top in tops])
    assert [len(samples) for _, _, samples in server.asked] == [2, 2, 1]
    assert [p.score for p in predictions] == pytest.approx([top / 255 for top in tops])


def test_it_keeps_the_contract(serve):
    server = serve(brightness)
    check_world_model(client(server.url), [ask(dawn(9)), ask(dawn(3, 100))])


def test_rollouts_that_are_none_are_not_sent(serve):
    server = serve(brightness)
    asked = [ask(), PredictionRequest("task"), ask(rollout(0).astype(float)), ask(task=" ")]
    good, *bad = client(server.url).predict(asked)
    assert good.score == 1.0
    assert [one.score for one in bad] == [None] * 3
    assert len(server.asked[0][2]) == 1
    assert client(server.url).predict([PredictionRequest("task")])[0].score is None
    assert len(server.asked) == 1


EIGHT = [0.5] * 8


def reply(rows, success=None):
    return 200, {}, {"outputs_progress": {"progress_pred": rows}, "outputs_success": success}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((200, {}, b""), "not progress of rollouts"),
        ((200, {}, b"\xff\xfe"), "not progress of rollouts"),
        ((200, {}, b"[" * 100_000), "not progress of rollouts"),
        ((200, {}, []), "not progress of rollouts"),
        ((200, {}, {"outputs_progress": None}), "not progress of rollouts"),
        ((200, {}, {"outputs_progress": {"progress_pred": None}}), "not progress of rollouts"),
        (reply([EIGHT[:7]]), "not progress of rollouts"),
        (reply([["0.5"] * 8]), "not progress of rollouts"),
        (reply([[True] * 8]), "not progress of rollouts"),
        (reply([[float("nan"), *EIGHT[1:]]]), "not progress of rollouts"),
        (reply([[float("inf"), *EIGHT[1:]]]), "not progress of rollouts"),
        (reply([[1.5, *EIGHT[1:]]]), "not progress of rollouts"),
        (reply([[-0.5, *EIGHT[1:]]]), "not progress of rollouts"),
        (reply([EIGHT], {"success_probs": [[2.0] * 8]}), "not progress of rollouts"),
        (reply([EIGHT, EIGHT]), "2 rows of progress for 1 rollouts"),
        (reply([]), "0 rows of progress for 1 rollouts"),
        (reply([EIGHT], {"success_probs": []}), "rows of progress"),
        ((404, {}, b"Not Found"), "answers 404: Not Found"),
        ((422, {}, {"detail": "no"}), "answers 422"),
        ((302, {"Location": "http://127.0.0.1:9/"}, b""), "answers 302"),
    ],
)
def test_what_no_retry_would_mend_is_an_error_at_once(serve, answer, problem):
    server = serve(lambda samples, attempt: answer)
    (prediction,) = client(server.url, max_retries=3).predict([ask()])
    assert prediction.score is None
    assert problem in prediction.error
    assert len(server.asked) == 1


def test_no_redirect_is_followed(serve):
    other = serve(brightness)
    server = serve(lambda samples, attempt: (307, {"Location": other.url + "/evaluate_batch_npy"}, b""))
    (prediction,) = client(server.url).predict([ask()])
    assert "answers 307" in prediction.error
    assert other.asked == []


def test_rounding_beyond_the_interval_is_clipped(serve):
    server = serve(lambda samples, attempt: reply([[-1e-4, *EIGHT[2:], 1.0005]]))
    (seen,) = client(server.url).progress([ask()])
    assert (seen.values[0], seen.values[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_passing_failure_is_tried_again(serve, status):
    server = serve(lambda samples, n: (status, {}, b"busy") if n < 3 else brightness(samples, n))
    assert client(server.url, max_retries=2).predict([ask()])[0].score == 1.0
    assert len(server.asked) == 3


def test_one_bad_batch_costs_only_itself(serve):
    server = serve(lambda samples, n: (500, {}, b"out of memory") if n == 2 else brightness(samples, n))
    predictions = client(server.url, batch_size=1).predict([ask()] * 3)
    assert [one.score for one in predictions] == [1.0, None, 1.0]
    assert "answers 500: out of memory" in predictions[1].error


def test_a_server_that_hangs_up_is_no_answer(serve):
    server = serve(lambda samples, attempt: None)
    assert "The connection failed" in client(server.url).predict([ask()])[0].error


def test_a_server_that_stays_silent_is_not_waited_for(serve):
    quiet = threading.Event()
    server = serve(lambda samples, attempt: quiet.wait(30) and None)
    (prediction,) = client(server.url, timeout_s=0.3).predict([ask()])
    quiet.set()
    assert "not done within 0.3 seconds" in prediction.error


@pytest.mark.parametrize("where", ["headers", "body"])
def test_an_answer_that_drips_is_not_waited_for(serve, where):
    done = threading.Event()

    def drip(handler):
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        while not done.wait(0.02):
            handler.wfile.write(b"H")
            handler.wfile.flush()

    server = serve(lambda samples, attempt: drip)
    (prediction,) = client(server.url, timeout_s=0.4).predict([ask()])
    done.set()
    assert "not done within 0.4 seconds" in prediction.error


def test_an_answer_that_breaks_off_is_none(serve):
    def cut(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"outputs')
        handler.close_connection = True

    server = serve(lambda samples, attempt: cut)
    assert "The connection failed" in client(server.url).predict([ask()])[0].error


def test_an_endless_answer_is_not_kept(serve):
    def flood(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(64):
                handler.wfile.write(b"0" * 2**20)
        except OSError:
            pass

    server = serve(lambda samples, attempt: flood)
    assert "more than 16777216 bytes" in client(server.url).predict([ask()])[0].error


def test_nobody_there_is_no_answer(serve):
    server = serve(brightness)
    server.shutdown()
    server.server_close()
    (prediction,) = client(server.url).predict([ask()])
    assert prediction.error.startswith(f"The Robometer server at {server.url} gave no answer.")
    with pytest.raises(WMRLError, match="no Robometer server"):
        client(server.url).health()


def test_a_proxy_is_not_asked(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert client(serve(brightness).url).predict([ask()])[0].score == 1.0


def test_health(serve):
    server = serve(lambda samples, attempt: (200, {}, {"status": "healthy", "available_gpus": 1}))
    assert client(server.url).health()["available_gpus"] == 1
    assert server.asked[0][:2] == ("GET", "/health")
    ill = serve(lambda samples, attempt: (200, {}, {"status": "loading"}))
    with pytest.raises(WMRLError, match="does not say that it is healthy"):
        client(ill.url).health()
    odd = serve(lambda samples, attempt: (200, {}, b"<html>"))
    with pytest.raises(WMRLError, match="no Robometer server"):
        client(odd.url).health()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"url": "127.0.0.1:8001"}, "url must look like"),
        ({"url": "file:///etc/passwd"}, "url must look like"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"batch_size": 0}, "batch_size at least 1"),
        ({"max_retries": -1}, "not negative"),
        ({"reduction": "sum"}, "reduction must be one of"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RobometerServer(**({"url": "http://127.0.0.1:8001"} | settings))
