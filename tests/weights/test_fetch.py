import gzip
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.errors import (
    InvalidArgumentError,
    WeightsDownloadError,
    WeightsFormatError,
    WeightsHashError,
)
from lightning_predict.weights import fetch
from lightning_predict.weights.fetch import Download
from lightning_predict.weights.files import MANIFEST_NAME, ManifestEntry
from lightning_predict.weights.source import HTTP_VARIABLE, WeightsSource, address_of, weights_source
from tests.weights.example import Server, publish, serving

T4 = "T4.safetensors"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSES", (0.001, 0.001, None))


@pytest.fixture
def entry(tmp_path: Path) -> ManifestEntry:
    """Files served from `tmp_path`."""
    return publish(tmp_path, "T4").files[T4]


def download(server: Server | str, seconds: float = 10.0) -> Download:
    return Download(address_of(server if isinstance(server, str) else server.url), seconds=seconds)


def test_file_comes_whole_after_errors_of_the_server(tmp_path: Path, entry: ManifestEntry) -> None:
    with serving(tmp_path) as server:
        fetched = download(server)
        assert fetched.manifest().files[T4] == entry
        assert fetched.file(T4, entry) == (tmp_path / T4).read_bytes()
    assert server.requests == [MANIFEST_NAME, T4]
    with serving(tmp_path) as server:
        server.failures = {MANIFEST_NAME: 1, T4: 2}
        fetched = download(server)
        fetched.manifest()
        fetched.file(T4, entry)
    assert server.requests == [MANIFEST_NAME] * 2 + [T4] * 3


def test_failing_server_is_named_after_three_attempts_and_a_missing_file_after_one(
    tmp_path: Path, entry: ManifestEntry
) -> None:
    with serving(tmp_path) as server:
        server.failures = {T4: 9}
        with pytest.raises(WeightsDownloadError, match=r"T4\.safetensors: HTTPError.*bundled weights"):
            download(server).file(T4, entry)
    assert server.requests == [T4] * 3
    with serving(tmp_path) as server, pytest.raises(WeightsDownloadError, match="status 404"):
        download(server).file("L4.safetensors", entry)
    assert server.requests == ["L4.safetensors"]
    with serving(tmp_path) as server:
        server.alter = lambda name, body: bytes(len(body))
        with pytest.raises(WeightsHashError, match=r"T4\.safetensors does not have the SHA-256"):
            download(server).file(T4, entry)


def test_connection_that_ends_early_is_tried_again(tmp_path: Path, entry: ManifestEntry) -> None:
    with serving(tmp_path) as server:
        server.alter = lambda name, body: body[: len(body) // 2]
        with pytest.raises((WeightsDownloadError, WeightsHashError)):  # the promised length, or the checksum
            download(server).file(T4, entry)


@pytest.mark.parametrize("is_packed", [True, False])
def test_body_above_the_size_of_the_manifest_is_not_read(
    tmp_path: Path, entry: ManifestEntry, *, is_packed: bool
) -> None:
    sent = 50_000_000
    with serving(tmp_path) as server:
        body = gzip.compress(bytes(sent)) if is_packed else bytes(sent)
        server.alter = lambda name, original: body
        server.headers = {"Content-Length": str(len(body))} | ({"Content-Encoding": "gzip"} if is_packed else {})
        tracemalloc.start()
        with pytest.raises(WeightsDownloadError, match=f"it has more than the {entry.bytes:,} bytes"):
            download(server).file(T4, entry)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # The server's body is in this process, too. A chunk of 64 KiB unpacks to at most a thousand times its size.
    assert peak < sent + (70_000_000 if is_packed else 5_000_000)


@pytest.mark.parametrize("kind", ["stall", "drip"])
def test_all_of_it_ends_in_time(tmp_path: Path, entry: ManifestEntry, kind: str) -> None:
    with serving(tmp_path) as server:
        server.stalls, server.drips = kind == "stall", kind == "drip"
        with pytest.raises(WeightsDownloadError, match="it took more than the time that there is"):
            download(server, 0.3).manifest()
        assert server.answered == []  # no process waited for its end


def test_redirections_are_counted_and_stay_encrypted(
    tmp_path: Path, entry: ManifestEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    publish(tmp_path / "elsewhere", "T4", bias=1.0)
    with serving(tmp_path / "elsewhere") as other, serving(tmp_path) as server:
        server.redirect = f"{other.url}/{MANIFEST_NAME}"
        assert download(server).manifest().files[T4] != entry
        other.redirect = f"{other.url}/{MANIFEST_NAME}"
        with pytest.raises(WeightsDownloadError, match="TooManyRedirects"):
            download(server).manifest()
        other.redirect = ""
        fetched = download(server)
        monkeypatch.setattr("lightning_predict.weights.source._is_loopback", lambda host: False)
        with pytest.raises(WeightsDownloadError, match="it redirects to an address without encryption"):
            fetched.manifest()


def test_refused_connection_and_page_that_is_no_manifest_are_errors(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: the port does not answer
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WeightsDownloadError, match=r"manifest\.json: ConnectionError\. Check the addr"):
            download(url).manifest()
    (tmp_path / MANIFEST_NAME).write_text("<html>not here</html>")
    with (
        serving(tmp_path) as server,
        pytest.raises(WeightsFormatError, match="is not JSON: it begins with '<html>not here</html>'"),
    ):
        download(server).manifest()


def test_no_message_shows_a_secret(tmp_path: Path, entry: ManifestEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(kind: Any) -> str:
        with serving(tmp_path) as server:
            kind(server)
            url = server.url.replace("http://", "http://user:password@") + "/folder?token=secret#part"
            with pytest.raises((WeightsDownloadError, WeightsHashError)) as error:
                download(url).file(T4, entry)
        return str(error.value)

    def fails(server: Server) -> None:
        server.failures = {T4: 9}

    def lies(server: Server) -> None:
        server.alter = lambda name, body: bytes(len(body))

    for kind in (fails, lies):
        message = failing(kind)
        assert "/folder/T4.safetensors" in message
        assert not any(word in message for word in ("user", "password", "token", "secret"))


def test_query_goes_with_every_file_and_a_trailing_slash_is_dropped(tmp_path: Path, entry: ManifestEntry) -> None:
    assert address_of("https://example.org/w/?sig=1").of(T4) == "https://example.org/w/T4.safetensors?sig=1"
    assert address_of("https://example.org/w/").shown == "https://example.org/w"


@pytest.mark.parametrize(
    "url", ["ftp://example.org", "example.org/weights", "file:///etc", "https://", "https://[", "https://a:b"]
)
def test_only_web_addresses_are_taken(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not usable; expected https://"):
        address_of(url)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "127.8.9.1", "[::1]:80", "LOCALHOST"])
def test_this_machine_may_be_asked_without_encryption(host: str) -> None:
    assert address_of(f"http://{host}/w").of("x").endswith("/w/x")


@pytest.mark.parametrize("host", ["example.org", "192.168.0.1", "localhost.example.org", "0.0.0.0", "127.0.0.1.nip.io"])
def test_others_may_not_unless_told(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://user:secret@{host}/w?key=secret"
    with pytest.raises(InvalidArgumentError, match="is not encrypted") as error:
        address_of(url)
    assert "secret" not in str(error.value)
    monkeypatch.setenv(HTTP_VARIABLE, "1")
    assert address_of(url).shown == f"http://{host}/w"


def test_weights_may_be_a_place_of_any_kind(tmp_path: Path) -> None:
    assert weights_source(None) == WeightsSource()
    assert weights_source("mine") == weights_source(Path("mine")) == WeightsSource(path="mine")
    assert weights_source("HTTPS://example.org/w") == WeightsSource(url="HTTPS://example.org/w")
    given = WeightsSource(url="https://example.org/w", offline=True)
    assert weights_source(given) is given


@pytest.mark.parametrize(("weights", "words"), [(5, "weights=5 is not a file"), ("http://example.org", "encrypted")])
def test_invalid_source_of_weights_is_rejected(weights: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        weights_source(weights)
    with pytest.raises(InvalidArgumentError, match="is not usable"):
        weights_source(WeightsSource(url="nowhere"))
