"""Downloads weights from a configured HTTP(S) address, with limits on time and size, and verifies their checksums.

This module writes nothing to disk. Downloads stay in memory until all of them are verified. Example::

    download = Download(address_of("https://example.org/weights"))
    manifest = download.manifest()
    download.file("T4.safetensors", manifest.files["T4.safetensors"])   # file content; its SHA-256 is verified
"""

from __future__ import annotations

import time
from typing import Final

import requests

from lightning_predict.base.checked import CHUNK_BYTES
from lightning_predict.base.errors import InvalidArgumentError, WeightsDownloadError, WeightsHashError
from lightning_predict.base.timeout import run_with_timeout
from lightning_predict.weights.files import (
    MANIFEST_NAME,
    MAX_BYTES,
    MAX_MANIFEST,
    Manifest,
    ManifestEntry,
    parse_manifest,
    sha256,
)
from lightning_predict.weights.source import Address, address_of

DEADLINE_SECONDS: Final = 20.0  # Time limit for all downloads together
TIMEOUTS: Final = (5.0, 10.0)  # Seconds to connect, and between two parts of an answer
PAUSES: Final = (0.5, 1.0, None)  # Seconds after each attempt that failed; None after the last

REDIRECTS: Final = 3


class _RefusedError(Exception):
    """A response to which a retry would not help."""


class Download:
    """Downloads files from one address; `seconds` limits all downloads together."""

    def __init__(self, address: Address, *, seconds: float = DEADLINE_SECONDS) -> None:
        self._address = address
        self._end = time.monotonic() + seconds

    def manifest(self) -> Manifest:
        """Download `<address>/manifest.json`, and parse it."""
        content = self._content(MANIFEST_NAME, MAX_MANIFEST)
        where = f"{self._address.shown}/{MANIFEST_NAME}"
        return parse_manifest(content.decode("utf-8", errors="replace"), where=where)

    def file(self, name: str, entry: ManifestEntry) -> bytes:
        """Download a file, and verify its size and checksum (SHA-256)."""
        content = self._content(name, min(entry.bytes, MAX_BYTES))
        if sha256(content) != entry.sha256:
            raise WeightsHashError(
                f"{self._address.shown}/{name} does not have the SHA-256 of its manifest ({entry.sha256}). Nothing "
                "was kept. Ask the publisher of these weights, or unset the address to use the bundled ones."
            )
        return content

    def _content(self, name: str, limit: int) -> bytes:
        """Download a file, in several attempts before the deadline."""
        for pause in PAUSES:
            try:
                return run_with_timeout(max(self._end - time.monotonic(), 0.0), lambda: self._attempt(name, limit))
            except _RefusedError as refusal:
                reason, pause = str(refusal), None
            except TimeoutError:
                reason, pause = "it took more than the time that there is for all downloads", None
            except Exception as error:  # its words may hold the address, which may hold a secret
                reason = type(error).__name__
            if pause is None or time.monotonic() + pause >= self._end:
                break
            time.sleep(pause)
        raise WeightsDownloadError(
            f"Could not download {self._address.shown}/{name}: {reason}. Check the address and the connection, or "
            "unset it (argument `weights`, LIGHTNING_PREDICT_WEIGHTS_URL) to use the bundled weights."
        )

    def _attempt(self, name: str, limit: int) -> bytes:
        with requests.Session() as session:
            session.max_redirects = REDIRECTS
            with session.get(self._address.of(name), timeout=TIMEOUTS, stream=True) as response:
                try:
                    address_of(response.url)
                except InvalidArgumentError:
                    raise _RefusedError("it redirects to an address without encryption") from None
                if 400 <= response.status_code < 500:
                    raise _RefusedError(f"status {response.status_code}")
                response.raise_for_status()
                content = bytearray()
                for chunk in response.iter_content(CHUNK_BYTES):
                    content += chunk
                    if len(content) > limit:
                        raise _RefusedError(f"it has more than the {limit:,} bytes that it may have")
                return bytes(content)
