"""Downloads weights from a configured HTTP(S) address, with limits on time and size, and verifies their checksums.

This module writes nothing to disk. Downloads stay in memory until all of them are verified. Example::

    download = Download(address_of("https://example.org/weights"), seconds=20.0)
    manifest = download.manifest()
    download.file("T4.safetensors", manifest.files["T4.safetensors"])   # file content; its SHA-256 is verified
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

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
from lightning_predict.weights.source import Address, address_of, shown_url

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 10.0
ATTEMPTS: Final = 3
PAUSE_SECONDS: Final = 0.5  # Seconds before the first retry. The pause doubles before the second retry.

REDIRECTS: Final = 3
CHUNK_BYTES: Final = 1 << 16

REMEDY: Final = (  # Advice to the user if weights cannot be downloaded
    "Check the address and the connection, or unset it (argument `weights`, LIGHTNING_PREDICT_WEIGHTS_URL) to use the "
    "bundled weights."
)

RETRIED_STATUS: Final = (408, 425, 429, 500, 502, 503, 504)


class _RefusedError(Exception):
    """A response to which a retry would not help."""


class Download:
    """Downloads files from one address before a deadline.

    `seconds` limits all downloads together.
    """

    def __init__(
        self, address: Address, *, seconds: float, allow_http: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._allow_http = allow_http
        self._seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def manifest(self) -> Manifest:
        """Download `<address>/manifest.json`, and parse it."""
        content = self.content(MANIFEST_NAME, MAX_MANIFEST)
        where = f"{self._address.shown}/{MANIFEST_NAME}"
        return parse_manifest(content.decode("utf-8", errors="replace"), where=where)

    def file(self, name: str, entry: ManifestEntry) -> bytes:
        """Download a file, and verify its size and checksum (SHA-256)."""
        if entry.bytes > MAX_BYTES:
            raise WeightsDownloadError(
                f"{self._address.shown}/{name} has {entry.bytes:,} bytes by its manifest; expected at most "
                f"{MAX_BYTES:,}. Nothing was fetched."
            )
        content = self.content(name, entry.bytes)
        if sha256(content) != entry.sha256:
            raise WeightsHashError(
                f"{self._address.shown}/{name} does not have the SHA-256 of its manifest ({entry.sha256}). Nothing "
                "was kept. Ask the publisher of these weights, or unset the address to use the bundled ones."
            )
        return content

    def content(self, name: str, limit: int) -> bytes:
        """Download a file without verifying its checksum, in at most `ATTEMPTS` attempts before the deadline."""
        attempts, reason = 0, ""
        while attempts < ATTEMPTS:
            if attempts:
                pause = PAUSE_SECONDS * 2 ** (attempts - 1)
                if self._left() <= pause:
                    break
                time.sleep(pause)
            attempts += 1
            left = self._left()
            try:
                if left <= 0:
                    raise TimeoutError
                return run_with_timeout(left, lambda: self._attempt(name, limit))
            except _RefusedError as refusal:
                reason = str(refusal)
                break
            except TimeoutError:
                reason = f"it took more than the {self._seconds:g} s that there are for all downloads"
                break
            except Exception as error:  # libraries raise many types
                reason = _reason(error)
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        raise WeightsDownloadError(f"Could not download {self._address.shown}/{name} in {tries}: {reason}. {REMEDY}")

    def _left(self) -> float:
        return self._end - self._clock()

    def _attempt(self, name: str, limit: int) -> bytes:
        import requests

        url = self._address.of(name)
        with requests.Session() as session:
            for _ in range(REDIRECTS + 1):
                with session.get(
                    url,
                    timeout=(CONNECT_SECONDS, READ_SECONDS),
                    stream=True,
                    allow_redirects=False,
                    headers={"Accept-Encoding": "identity"},
                ) as response:
                    target = response.headers.get("Location")
                    if response.is_redirect and target is not None:
                        url = self._redirected(url, target)
                        continue
                    status = response.status_code
                    if status in RETRIED_STATUS:
                        raise OSError(f"status {status}")
                    if status != 200:
                        raise _RefusedError(f"status {status}")
                    return self._body(response, limit)
        raise _RefusedError(f"more than {REDIRECTS} redirections")

    def _redirected(self, url: str, target: str) -> str:
        """Return the target of a redirect, if the target is as safe as the configured address."""
        joined = urljoin(url, target)
        try:
            if urlsplit(url).scheme == "https" and urlsplit(joined).scheme != "https":
                raise ValueError("no longer encrypted")
            address_of(joined, allow_http=self._allow_http)
        except (InvalidArgumentError, ValueError):
            raise _RefusedError(f"it sends to {shown_url(urlsplit(joined))!r}, which cannot be trusted") from None
        return joined

    def _body(self, response: requests.Response, limit: int) -> bytes:
        """Return the decompressed response body; raise an error as soon as it exceeds `limit` bytes."""
        too_long = _RefusedError(f"it has more than the {limit:,} bytes that it may have")
        promised = response.headers.get("Content-Length", "")
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip", ""):
            raise _RefusedError(f"its content encoding {encoding[:20]!r} was not asked for")
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        if unpack is None and promised.isdecimal() and len(promised) < 20 and int(promised) > limit:
            raise too_long
        content, received = bytearray(), 0
        while chunk := response.raw.read1(CHUNK_BYTES, decode_content=False):
            if self._left() <= 0:
                raise TimeoutError
            received += len(chunk)
            content += chunk if unpack is None else unpack.decompress(chunk, limit + 1 - len(content))
            if len(content) > limit or received > limit + CHUNK_BYTES:
                raise too_long
        if unpack is not None and not unpack.eof:
            raise OSError("its packed content ends early")
        if unpack is None and promised.isdecimal() and received < int(promised[:20]):
            raise OSError("the connection ended early")
        return bytes(content)


def _reason(error: Exception) -> str:
    """Return why an attempt failed, without the address, which may contain a secret."""
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not valid, or the encryption failed"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy failed"
    names = {type(cause).__name__ for cause in _chain(error)}
    if isinstance(error, requests.Timeout) or any("Timeout" in name for name in names):
        return "it timed out"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) if type(error) is OSError else type(error).__name__


def _chain(error: BaseException | None) -> list[BaseException]:
    errors: list[BaseException] = []
    while error is not None and len(errors) < 10:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors
