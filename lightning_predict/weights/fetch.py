"""Downloads of weights from a configured HTTP(S) address into the user's cache, checked before they count.

Files are fetched to a temporary name in the cache folder and moved to their place only when their SHA-256 is the
manifest's, so a broken download leaves nothing behind. Example::

    manifest = fetch_manifest("https://example.org/weights", Path("cache"))
    fetch_file("https://example.org/weights", "T4.safetensors", manifest.files["T4.safetensors"].sha256, Path("cache"))
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pooch
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from lightning_predict.errors import InvalidArgumentError, WeightsDownloadError, WeightsHashError
from lightning_predict.weights.manifest import MANIFEST_NAME, Manifest, parse_manifest

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 30.0
RETRIES: Final = 2
TIMEOUTS: Final = (CONNECT_SECONDS, READ_SECONDS)


def check_address(url: str) -> str:
    """The address without a trailing slash.

    Raises:
        InvalidArgumentError: Not an http or https address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidArgumentError(
            f"Weights address {url!r} is not usable; expected http://... or https://..., the folder that holds "
            f"{MANIFEST_NAME}."
        )
    return url.rstrip("/")


def fetch_manifest(url: str, folder: Path, *, timeouts: tuple[float, float] = TIMEOUTS) -> Manifest:
    """Read `<url>/manifest.json`, check it and keep a copy in the folder.

    Args:
        url: Address of the folder that holds it.
        folder: The cache.
        timeouts: Seconds to wait for the connection, and for each piece of the answer.

    Raises:
        WeightsDownloadError: It could not be fetched after the retries.
        WeightsFormatError: It is not a manifest.
    """
    address = f"{url}/{MANIFEST_NAME}"
    with requests.Session() as session:
        session.mount(address, HTTPAdapter(max_retries=_retry_policy()))
        try:
            response = session.get(address, timeout=timeouts)
            response.raise_for_status()
            text = response.content.decode("utf-8", errors="replace")
        except requests.RequestException as error:
            raise _failed(address, error) from None
    manifest = parse_manifest(text, where=address)
    _write_atomically(folder / MANIFEST_NAME, text)
    return manifest


def fetch_file(url: str, name: str, sha256: str, folder: Path, *, timeouts: tuple[float, float] = TIMEOUTS) -> Path:
    """Have a file in the folder with this hash: the copy that is there, or a fresh download.

    Raises:
        WeightsDownloadError: It could not be fetched after the retries.
        WeightsHashError: What the address serves has another hash.
    """
    fetcher = pooch.create(
        path=folder, base_url=f"{url}/", registry={name: f"sha256:{sha256}"}, retry_if_failed=RETRIES
    )
    downloader = pooch.HTTPDownloader(timeout=timeouts, chunk_size=2**16)
    try:
        return Path(fetcher.fetch(name, downloader=downloader))
    except requests.RequestException as error:
        raise _failed(f"{url}/{name}", error) from None
    except ValueError:
        raise WeightsHashError(
            f"{url}/{name} does not have the SHA-256 that its manifest promises ({sha256}), in {RETRIES + 1} "
            "downloads. Nothing was kept. Ask whoever publishes these weights, or unset the address to use the "
            "bundled ones."
        ) from None


def _retry_policy() -> Retry:
    return Retry(total=RETRIES, backoff_factor=0.5, status_forcelist=(500, 502, 503, 504), raise_on_status=False)


def _failed(address: str, error: Exception) -> WeightsDownloadError:
    return WeightsDownloadError(
        f"Could not download {address} in {RETRIES + 1} attempts: {error}. Check the address and the connection, or "
        "unset it (argument `url`, LIGHTNING_PREDICT_WEIGHTS_URL) to use the bundled weights."
    )


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
