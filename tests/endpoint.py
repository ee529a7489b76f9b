"""A real HTTP server on the loopback interface, with OpenAI's chat completions; it answers as a test says."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Answers by a function of the request's body and the number of the attempt; keeps what was sent."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.bodies = []
        self.headers = []
        self.running = self.most = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            attempt = sum(other == body for other in server.bodies)
            server.bodies.append(body)
            server.headers.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            server.running += 1
            server.most = max(server.most, server.running)
        try:
            answer = server.answer(body, attempt)
        finally:
            with server.lock:
                server.running -= 1
        if answer is None:  # hang up without a word
            self.close_connection = True
            return
        if callable(answer):  # write what it likes
            answer(self)
            return
        status, headers, text = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode() if isinstance(text, str) else text)

    do_GET = do_POST

    def log_message(self, *args):
        pass


def completion(text, reason="stop"):
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {}, json.dumps({"choices": [choice]})


def echo(body, attempt):
    return completion(f"You said: {body['messages'][-1]['content']}")


NOW = {"Retry-After": "0"}


@contextmanager
def serving():
    """Starts servers that run meanwhile."""
    servers = []

    def start(answer):
        server = Server(answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def say(*texts):
    return [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}] for text in texts]
