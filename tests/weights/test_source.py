from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.weights.source import HTTP_VARIABLE, WeightsSource, address_of, weights_source


@pytest.mark.parametrize(
    "url", ["ftp://example.org", "example.org/weights", "file:///etc", "https://", "https://[", "https://a:b", 5, None]
)
def test_only_web_addresses_are_taken(url: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not usable; expected https://"):
        address_of(url)


def test_a_trailing_slash_is_dropped() -> None:
    assert address_of("https://example.org/w/").shown == "https://example.org/w"


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
