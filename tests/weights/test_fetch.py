from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lightning_predict.errors import InvalidArgumentError, WeightsDownloadError, WeightsFormatError, WeightsHashError
from lightning_predict.weights import fetch
from lightning_predict.weights.fetch import check_address, fetch_file, fetch_manifest
from lightning_predict.weights.manifest import MANIFEST_NAME
from tests.weights.example import publish, serving


@pytest.mark.parametrize("url", ["ftp://example.org", "example.org/weights", "file:///etc", "https://"])
def test_only_http_addresses_are_taken(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected http://\.\.\. or https://"):
        check_address(url)


def test_a_trailing_slash_is_dropped() -> None:
    assert check_address("https://example.org/w/") == "https://example.org/w"


def test_a_file_comes_whole_and_is_not_fetched_twice(tmp_path: Path) -> None:
    entry = publish(tmp_path / "served", "T4").files["T4.safetensors"]
    with serving(tmp_path / "served") as server:
        manifest = fetch_manifest(server.url, tmp_path / "cache")
        assert manifest.files["T4.safetensors"] == entry
        for _ in range(2):
            path = fetch_file(server.url, "T4.safetensors", entry.sha256, tmp_path / "cache")
            assert path.read_bytes() == (tmp_path / "served" / "T4.safetensors").read_bytes()
    assert server.requests == [MANIFEST_NAME, "T4.safetensors"]
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == ["T4.safetensors", MANIFEST_NAME]


def test_an_error_of_the_server_is_tried_again(tmp_path: Path) -> None:
    entry = publish(tmp_path / "served", "T4").files["T4.safetensors"]
    with serving(tmp_path / "served") as server:
        server.failures = {MANIFEST_NAME: 1, "T4.safetensors": 1}
        fetch_manifest(server.url, tmp_path / "cache")
        assert fetch_file(server.url, "T4.safetensors", entry.sha256, tmp_path / "cache").is_file()
    assert server.requests == [MANIFEST_NAME] * 2 + ["T4.safetensors"] * 2


def test_a_server_that_keeps_failing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "RETRIES", 0)
    entry = publish(tmp_path / "served", "T4").files["T4.safetensors"]
    with serving(tmp_path / "served") as server:
        server.failures = {MANIFEST_NAME: 9, "T4.safetensors": 9}
        with pytest.raises(WeightsDownloadError, match=r"manifest\.json in 1 attempts: 500.*bundled weights"):
            fetch_manifest(server.url, tmp_path / "cache")
        with pytest.raises(WeightsDownloadError, match=r"T4\.safetensors in 1 attempts: 500"):
            fetch_file(server.url, "T4.safetensors", entry.sha256, tmp_path / "cache")


def test_a_missing_file_is_a_download_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "RETRIES", 0)
    publish(tmp_path / "served", "T4")
    with serving(tmp_path / "served") as server, pytest.raises(WeightsDownloadError, match="404"):
        fetch_file(server.url, "L4.safetensors", "0" * 64, tmp_path / "cache")


@pytest.mark.parametrize("kind", ["wrong", "truncated"])
def test_wrong_and_truncated_content_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(fetch, "RETRIES", 0)
    entry = publish(tmp_path / "served", "T4").files["T4.safetensors"]
    with serving(tmp_path / "served") as server:
        if kind == "wrong":
            server.alter = lambda name, body: bytes(len(body))
            expected: type[Exception] = WeightsHashError
        else:  # fewer bytes than promised, and the connection ends
            server.alter = lambda name, body: body[: len(body) // 2]
            expected = WeightsDownloadError
        with pytest.raises(expected, match=r"T4\.safetensors"):
            fetch_file(server.url, "T4.safetensors", entry.sha256, tmp_path / "cache")
    assert not (tmp_path / "cache" / "T4.safetensors").exists()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_server_that_does_not_answer_in_time_is_a_download_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "RETRIES", 0)
    publish(tmp_path / "served", "T4")
    with serving(tmp_path / "served") as server:
        server.stall_seconds = 1.0
        with pytest.raises(WeightsDownloadError, match="timed out"):
            fetch_manifest(server.url, tmp_path / "cache", timeouts=(0.2, 0.1))
        with pytest.raises(WeightsDownloadError, match="timed out"):
            fetch_file(server.url, "T4.safetensors", "0" * 64, tmp_path / "cache", timeouts=(0.2, 0.1))


def test_a_refused_connection_is_a_download_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "RETRIES", 0)
    with socket.socket() as taken:  # bound and not listening: the port answers nobody
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WeightsDownloadError, match=r"manifest\.json in 1 attempts.*Check the address"):
            fetch_manifest(url, tmp_path / "cache")


def test_a_page_that_is_no_manifest_is_refused_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text("<html>not here</html>")
    with serving(tmp_path) as server, pytest.raises(WeightsFormatError, match="is not valid JSON"):
        fetch_manifest(server.url, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
