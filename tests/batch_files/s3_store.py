"""An S3 store on loopback that tests start themselves: moto's, behind a door that may be slow, fail or refuse."""

import os
import re
import threading
import time
from contextlib import contextmanager

from moto.server import DomainDispatcherApplication, create_backend_app
from pyarrow import fs
from werkzeug.serving import WSGIRequestHandler, make_server

from ballsbins.batch_files.store import _filesystem

BUCKET = "batches"
USER, PASSWORD = "trainer", "not a secret"


def refusal(status, code):
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} by the test</Message></Error>"
    return status, [("Content-Type", "application/xml")], [body.encode()]


class Store:
    """The door: every request passes here, in the thread of its connection."""

    def __init__(self):
        self._app, self._lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
        self.requests = []
        self.be_good()

    def be_good(self):
        """Answer at once, and let everybody in who says a name that is known."""
        self.fail_every, self.delay, self.users, self.at_request = 0, 0.0, {USER}, None

    def __call__(self, environ, start_response):
        asked = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        with self._lock:
            self.requests.append(asked)
            number = len(self.requests)
        if self.at_request is not None:
            self.at_request(asked)
        time.sleep(self.delay)
        answer = None
        name = re.search(r"Credential=([^/]*)/", environ.get("HTTP_AUTHORIZATION", ""))
        if (name[1] if name else None) not in self.users:
            answer = refusal("403 Forbidden", "AccessDenied")
        elif self.fail_every and number % self.fail_every == 0:
            answer = refusal("503 Slow Down", "SlowDown")
        if answer is None:
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, headers, body = answer
        start_response(status, headers)
        return [b""] if environ["REQUEST_METHOD"] == "HEAD" else body


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_):
        pass


@contextmanager
def serving():
    """Start a store with an empty bucket, and tell this process and its children where it is; give the store."""
    store = Store()
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    _filesystem.cache_clear()  # the same address may have been in a store that has ended
    try:
        made, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}?allow_bucket_creation=true")
        made.create_dir(BUCKET)
        yield store
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        server.shutdown()
        thread.join()
