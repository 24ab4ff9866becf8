"""Certificates that are handed to a step: whom git, pip and uv trust then, asked of servers with their own."""

import http.server
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from environment import uv_environment
from image.build import PROXIES
from image.steps import step


@pytest.fixture
def server(tmp_path):
    """`server()` starts one with a new certificate of its own: address, certificate, programs that have asked it."""
    running = []

    def start() -> tuple[str, str, set[str]]:
        pem, asked = tmp_path / f"{len(running)}.pem", set()
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-subj", f"/CN=server {len(running)}", "-addext", "subjectAltName=DNS:localhost"]
        command += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", pem, "-out", f"{pem}.crt"]
        subprocess.run(command, check=True, capture_output=True)

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.add(self.headers["User-Agent"].partition("/")[0])
                self.send_error(404)

            def log_message(self, *_):
                pass

        made = http.server.ThreadingHTTPServer(("localhost", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{pem}.crt", pem)
        made.socket = context.wrap_socket(made.socket, server_side=True)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        running.append(made)
        return f"https://localhost:{made.server_port}", f"{pem}.crt", asked

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


def test_what_is_handed_in_is_trusted_beside_whom_the_base_trusts(server, tmp_path, monkeypatch):
    (public, known, asked), (private, handed, asked_too) = server(), server()
    monkeypatch.setattr(step, "AUTHORITIES", Path(known))
    monkeypatch.setattr(step, "SECRETS", tmp_path / "secrets")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "ca").symlink_to(handed)
    for name in step.CERTIFICATES:
        monkeypatch.setenv(name, "/nonexistent")
    for name in [one for one in os.environ if one.startswith(("PIP_", "UV_")) or one in PROXIES]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def fetch():
        pip = ["pip", "download", "x", "--retries", "0", "--index-url", public, "--extra-index-url", private]
        uv = ["uv", "pip", "compile", "-", "--index", public, "--default-index", private]
        environment = uv_environment(sys.executable)
        for command in (pip, uv):
            subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, input=b"x")
        for address in (public, private):
            subprocess.run(["git", "ls-remote", address], capture_output=True)
        left.append(os.environ["GIT_SSL_CAINFO"])

    left = []
    assert step.run("packages", fetch, []) == 0
    assert asked == asked_too == {"git", "pip", "uv"}
    assert not os.path.exists(left[0])
