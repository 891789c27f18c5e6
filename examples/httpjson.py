"""The little HTTP that the example services share: JSON in, bytes out."""

import json
import signal
import sys
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BODY_BYTES = 64 * 1024


class Problem(Exception):
    """An error for the client, sent as a problem document (RFC 9457)."""

    def __init__(self, status, code, detail, headers=()):
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, headers

    def answer(self):
        document = {'type': f'urn:problem:{self.code}', 'title': self.code.replace('_', ' '),
                    'status': self.status, 'code': self.code, 'detail': self.detail}
        return (self.status, [['Content-Type', 'application/problem+json'], *self.headers],
                json.dumps(document).encode())


def json_answer(status, value):
    return status, [['Content-Type', 'application/json']], json.dumps(value).encode()


class JsonHandler(BaseHTTPRequestHandler):
    """Subclasses have get(), post() or put(): each returns (status, headers, body),
    with headers as [[name, value], ...], or raises Problem.  None sends nothing
    and closes the connection."""

    protocol_version = 'HTTP/1.1'
    timeout = 60  # a client that says nothing does not hold a thread for ever

    def do_GET(self):
        self.dispatch(self.get)

    def do_POST(self):
        self.dispatch(self.post)

    def do_PUT(self):
        self.dispatch(self.put)

    def get(self):
        raise Problem(404, 'not_found', 'Nothing answers here.')

    post = put = get

    def dispatch(self, method):
        try:
            answer = method()
        except Problem as problem:
            answer = problem.answer()
            self.close_connection = True  # the request's body may be unread
        except Exception:
            traceback.print_exc()
            answer = Problem(500, 'internal_error', 'The log of the service says more.').answer()
            self.close_connection = True
        if answer is None:
            self.close_connection = True
        else:
            self.send(*answer)

    def send(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        if self.close_connection:
            self.send_header('Connection', 'close')
        self.end_headers()
        self.wfile.write(body)

    def read_json(self):
        """The request's body, which must be one JSON object."""
        length = self.headers.get('Content-Length', '')
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            raise Problem(400, 'request_malformed',
                          f'Send a body with a Content-Length of at most {MAX_BODY_BYTES}.')
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Problem(400, 'request_malformed', 'The body must be a JSON object.')
        return body

    def log_message(self, format, *args):
        """One line per answer on standard error, without headers and bodies."""
        sys.stderr.write(f'{self.log_date_time_string()} {format % args}\n')


def serve(handler, port):
    """Serves on 127.0.0.1 until SIGTERM; prints the address first (port 0: a free one)."""
    server = ThreadingHTTPServer(('127.0.0.1', port), handler)
    server.daemon_threads = True  # a request that hangs does not keep the program alive
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f'http://127.0.0.1:{server.server_port}', flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
