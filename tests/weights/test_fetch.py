import gzip
import socket
import tracemalloc
from functools import partial
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
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.001)


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
        with pytest.raises(WeightsDownloadError, match=r"T4\.safetensors in 3 attempts: status 500.*bundled weights"):
            download(server).file(T4, entry)
    assert server.requests == [T4] * 3
    with serving(tmp_path) as server, pytest.raises(WeightsDownloadError, match="in 1 attempt: status 404"):
        download(server).file("L4.safetensors", entry)
    assert server.requests == ["L4.safetensors"]
    with serving(tmp_path) as server:
        server.alter = lambda name, body: bytes(len(body))
        with pytest.raises(WeightsHashError, match=r"T4\.safetensors does not have the SHA-256"):
            download(server).file(T4, entry)


@pytest.mark.parametrize("promised", [None, 10**3, 10**30])
def test_a_connection_that_ends_early_is_tried_again(
    tmp_path: Path, entry: ManifestEntry, promised: int | None
) -> None:
    with serving(tmp_path) as server:
        server.alter = lambda name, body: body[: len(body) // 2]
        server.headers = {} if promised is None else {"Content-Length": str(promised)}
        with pytest.raises(WeightsDownloadError, match=r"in 3 attempts|more than the"):
            download(server).file(T4, entry)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_file_that_is_longer_than_its_manifest_says_is_cut_off(
    tmp_path: Path, entry: ManifestEntry, says_so: bool
) -> None:
    sent = 50_000_000
    with serving(tmp_path) as server:
        server.alter = lambda name, body: bytes(sent)
        server.headers = {"Content-Length": str(sent if says_so else entry.bytes + 2 * fetch.CHUNK_BYTES)}
        tracemalloc.start()
        with pytest.raises(WeightsDownloadError, match=f"in 1 attempt: it has more than the {entry.bytes:,} bytes"):
            download(server).file(T4, entry)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # The server's body is in this process, too.
    assert peak < sent + 5_000_000


def test_manifest_and_file_of_hundreds_of_megabytes_are_not_read(tmp_path: Path, entry: ManifestEntry) -> None:
    with serving(tmp_path) as server:
        server.headers = {"Content-Length": str(10**9)}
        with pytest.raises(WeightsDownloadError, match="in 1 attempt: it has more than the 16,777,216 bytes"):
            download(server).manifest()
    with serving(tmp_path) as server, pytest.raises(WeightsDownloadError, match="expected at most 134,217,728"):
        download(server).file(T4, fetch_entry(entry, 10**9))
    assert server.requests == []


def fetch_entry(entry: ManifestEntry, size: int) -> ManifestEntry:
    from dataclasses import replace

    return replace(entry, bytes=size)


def _instead(body: bytes, name: str, original: bytes) -> bytes:
    return body


def test_a_packed_answer_is_unpacked_up_to_its_limit(tmp_path: Path, entry: ManifestEntry) -> None:
    with serving(tmp_path) as server:
        for body, refusal in (
            ((tmp_path / T4).read_bytes(), None),
            (bytes(50_000_000), f"in 1 attempt: it has more than the {entry.bytes:,} bytes"),
        ):
            packed = gzip.compress(body)
            server.headers = {"Content-Encoding": "gzip", "Content-Length": str(len(packed))}
            server.alter = partial(_instead, packed)
            if refusal is None:
                assert download(server).file(T4, entry) == body
            else:
                with pytest.raises(WeightsDownloadError, match=refusal):
                    download(server).file(T4, entry)
        server.headers = {"Content-Encoding": "br"}
        with pytest.raises(WeightsDownloadError, match="content encoding 'br' was not asked for"):
            download(server).file(T4, entry)


@pytest.mark.parametrize("kind", ["stall", "drip"])
def test_all_of_it_ends_in_time(tmp_path: Path, entry: ManifestEntry, kind: str) -> None:
    with serving(tmp_path) as server:
        server.stalls, server.drips = kind == "stall", kind == "drip"
        with pytest.raises(WeightsDownloadError, match=r"in 1 attempt: it took more than the 0\.3 s"):
            download(server, 0.3).manifest()
        assert server.answered == []  # no process waited for its end


def test_timeout_covers_all_downloads_and_redirections_are_counted(tmp_path: Path, entry: ManifestEntry) -> None:
    now = [0.0]
    with serving(tmp_path) as server:
        fetched = Download(address_of(server.url), seconds=20.0, clock=lambda: now[0])
        fetched.manifest()
        now[0] = 20.0
        with pytest.raises(WeightsDownloadError, match="it took more than the 20 s that there are for all downloads"):
            fetched.file(T4, entry)
    assert server.requests == [MANIFEST_NAME]
    (tmp_path / "elsewhere").mkdir()
    publish(tmp_path / "elsewhere", "T4", bias=1.0)
    with serving(tmp_path / "elsewhere") as other, serving(tmp_path) as server:
        server.redirect = f"{other.url}/{MANIFEST_NAME}"
        assert download(server).manifest().files[T4] != entry
        other.redirect = f"{other.url}/{MANIFEST_NAME}"
        with pytest.raises(WeightsDownloadError, match="in 1 attempt: more than 3 redirections"):
            download(server).manifest()


def test_refused_connection_and_page_that_is_no_manifest_are_errors(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: the port does not answer
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WeightsDownloadError, match=r"manifest\.json in 3 attempts: no connection.*Check the addr"):
            download(url).manifest()
    (tmp_path / MANIFEST_NAME).write_text("<html>not here</html>")
    with (
        serving(tmp_path) as server,
        pytest.raises(WeightsFormatError, match="is not JSON: it begins with '<html>not here</html>'"),
    ):
        download(server).manifest()


@pytest.mark.parametrize(
    "target", ["http://example.org/manifest.json", "file:///etc/passwd", "//example.org/x", "http://["]
)
def test_a_redirection_to_what_cannot_be_trusted_is_not_followed(
    tmp_path: Path, entry: ManifestEntry, target: str
) -> None:
    with serving(tmp_path) as server:
        server.redirect = target
        with pytest.raises(WeightsDownloadError, match=r"in 1 attempt: it sends to|in 3 attempts: ValueError"):
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

    def redirects(server: Server) -> None:
        server.redirect = "http://user:password@example.org/?token=secret"

    for kind in (fails, lies, redirects):
        message = failing(kind)
        assert "/folder/T4.safetensors" in message
        assert not any(word in message for word in ("user", "password", "token", "secret"))


def test_query_goes_with_every_file_and_a_trailing_slash_is_dropped(tmp_path: Path, entry: ManifestEntry) -> None:
    assert address_of("https://example.org/w/?sig=1").of(T4) == "https://example.org/w/T4.safetensors?sig=1"
    assert address_of("https://example.org/w/").shown == "https://example.org/w"


@pytest.mark.parametrize(
    "url", ["ftp://example.org", "example.org/weights", "file:///etc", "https://", "https://[", "https://a:b", 5, None]
)
def test_only_web_addresses_are_taken(url: Any) -> None:
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
    assert address_of(url, allow_http=True).shown == f"http://{host}/w"
    monkeypatch.setenv(HTTP_VARIABLE, "1")
    assert address_of(url).shown == f"http://{host}/w"


def test_weights_may_be_a_place_of_any_kind(tmp_path: Path) -> None:
    assert weights_source(None) == WeightsSource()
    assert weights_source("mine") == weights_source(Path("mine")) == WeightsSource(path="mine")
    assert weights_source("HTTPS://example.org/w") == WeightsSource(url="HTTPS://example.org/w")
    given = WeightsSource(url="https://example.org/w", cache_dir="c", offline=True)
    assert weights_source(given) is given


@pytest.mark.parametrize(("weights", "words"), [(5, "weights=5 is not a file"), ("http://example.org", "encrypted")])
def test_invalid_source_of_weights_is_rejected(weights: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        weights_source(weights)
    with pytest.raises(InvalidArgumentError, match="is not usable"):
        weights_source(WeightsSource(url="nowhere"))
