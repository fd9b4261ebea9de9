"""An authorization server on loopback that gives signed tokens to one client."""

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.processes.certificates import Certificate

CLIENT = "stilltide"
SECRET = 'tide:"still" 7\\+%'  # noqa: S105 - of a server that lives as long as the test
SCOPE = "kafka"
AUDIENCE = "kafka-of-the-test"
ISSUER = "https://issuer.example"
_KEY_ID = "test"


class OidcServer:
    """Serves `url`; keys for brokers are in the file `jwks`.

    Attributes:
        url: token endpoint.
        life_s: life of the tokens that are given from now on.
        answer: status and body of all answers from now on, None for tokens.
        delay: answers wait until this event is set.
        fetch_count: number of tokens that were given.
    """

    def __init__(self, directory: Path, tls: Certificate | None = None) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(RSAAlgorithm.to_jwk(self._key.public_key()))
        self.jwks = directory / "jwks.json"
        key = {**public, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}
        self.jwks.write_text(json.dumps({"keys": [key]}))
        self.life_s = 3600.0
        self.answer: tuple[int, bytes, dict[str, str]] | None = None
        self.delay = threading.Event()
        self.delay.set()
        self.fetch_count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def token(self) -> str:
        """A token as the server gives it."""
        now_s = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": CLIENT,
            "scope": SCOPE,
            "iat": now_s,
            "exp": now_s + int(self.life_s),
        }
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": _KEY_ID})

    def answer_to(self, headers: Any, body: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers for a request."""
        self.delay.wait(60)
        if self.answer is not None:
            return self.answer
        credentials = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        form = parse_qs(body)
        if headers.get("Authorization") != f"Basic {credentials}":
            return 401, b'{"error": "invalid_client"}', {}
        if form != {"grant_type": ["client_credentials"], "scope": [SCOPE]}:
            return 400, b'{"error": "invalid_request"}', {}
        self.fetch_count += 1
        token = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.life_s}
        return 200, json.dumps(token).encode(), {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.delay.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(server: OidcServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status, answer, headers = server.answer_to(self.headers, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Handler
