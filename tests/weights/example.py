"""Small weights files, and a web server on the loopback that serves, fails or stalls as a test says."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from lightning_predict.weights.files import (
    MANIFEST_NAME,
    HeldOutError,
    Manifest,
    ManifestEntry,
    file_name,
    sha256,
    write_weights,
)
from lightning_predict.weights.records import GpuWeights, Layer, NetworkWeights


def network(family: str = "toy", *, inputs: int = 3, members: int = 2, bias: float = 0.0) -> NetworkWeights:
    """Two layers of width 4; constant weights, so that a test can tell files apart by `bias`."""
    return NetworkWeights(
        family=family,
        trained=frozenset({("linear", "float32")}),
        features=tuple(f"feature_{index}" for index in range(inputs)),
        mean=np.zeros(inputs, np.float32),
        scale=np.ones(inputs, np.float32),
        low=np.full(inputs, -1, np.float32),
        high=np.full(inputs, 1, np.float32),
        lowest_utilisation=0.01,
        layers=(
            Layer(np.full((members, inputs, 4), 0.5, np.float32), np.zeros((members, 4), np.float32)),
            Layer(np.full((members, 4, 1), 0.25, np.float32), np.full((members, 1), bias, np.float32)),
        ),
        interval={"linear/float32": 0.1, "*": 0.2},
    )


def weights(gpu: str, *, bias: float = 0.0) -> GpuWeights:
    """The weights of one GPU."""
    return GpuWeights(gpu, {"toy": network(bias=bias)}, "toy-1", 0, ("a source (MIT)",))


def publish(folder: Path, *gpus: str, bias: float = 0.0) -> Manifest:
    """A folder of weights files with their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for gpu in gpus:
        path = folder / file_name(gpu)
        write_weights(weights(gpu, bias=bias), path)
        content = path.read_bytes()
        entries[path.name] = ManifestEntry(
            sha256=sha256(content),
            bytes=len(content),
            gpu=gpu,
            operations=("linear",),
            dtypes=("float32",),
            trained_on=("a source (MIT)",),
            rows=10,
            held_out_error={"linear/float32": HeldOutError(rows=5, mean=0.1, median=0.05, coverage=0.9)},
        )
    manifest = Manifest(recipe="toy-1", seed=0, files=entries)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


@dataclass
class Server:
    """Behaviour of the server, and its requests."""

    folder: Path  # Files that it serves
    failures: dict[str, int] = field(default_factory=dict)  # Answers of 500 that remain, by file name
    stalls: bool = False  # No answer comes until the server closes
    # Changes a body on its way out; the length that was promised stays
    alter: Callable[[str, bytes], bytes] = lambda name, body: body
    headers: dict[str, str] = field(default_factory=dict)  # Sent with each answer
    redirect: str = ""  # Where to send who asks, instead of an answer
    drips: bool = False  # A byte comes now and then, until the server closes
    requests: list[str] = field(default_factory=list)  # File names in the order that they were asked for
    answered: list[str] = field(default_factory=list)  # File names that were sent to their end
    url: str = ""  # Its address
    closes: threading.Event = field(default_factory=threading.Event)  # Set when it is to end


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A web server for this folder on a free port of the loopback."""
    server = Server(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1].partition("?")[0]
            server.requests.append(name)
            if server.stalls:
                server.closes.wait()
                return
            if server.failures.get(name, 0) > 0:
                server.failures[name] -= 1
                self.send_error(500)
                return
            if server.redirect:
                self.send_response(302)
                self.send_header("Location", server.redirect)
                self.end_headers()
                return
            path = server.folder / name
            if not path.is_file():
                self.send_error(404)
                return
            body = path.read_bytes()
            self.send_response(200)
            for header, value in ({"Content-Length": str(len(body))} | server.headers).items():
                self.send_header(header, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # who asked may have had enough
                for byte in body if server.drips else b"":
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if server.closes.wait(0.05):
                        return
                if not server.drips:
                    self.wfile.write(server.alter(name, body))
                server.answered.append(name)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    # It looks that often whether it is to end: by itself twice a second, which every test would wait for.
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closes.set()
        http.shutdown()
        http.server_close()
        thread.join()
