"""`WeightsSource`: where weights are searched (file, folder or download address).

Every `weights` argument accepts a file, a folder or an address. Example::

    >>> weights_source("https://user:secret@example.org/weights").address.shown
    'https://example.org/weights'
    >>> weights_source("mine/T4.safetensors").path
    'mine/T4.safetensors'
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import CACHE_VARIABLE

URL_VARIABLE: Final = "LIGHTNING_PREDICT_WEIGHTS_URL"
HTTP_VARIABLE: Final = "LIGHTNING_PREDICT_ALLOW_HTTP"
VARIABLES: Final = (URL_VARIABLE, HTTP_VARIABLE, CACHE_VARIABLE)  # Variables that decide which weights are found
DEADLINE_SECONDS: Final = 20.0  # Default time limit in seconds for all downloads together


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a folder with a manifest."""

    parts: SplitResult

    @property
    def shown(self) -> str:
        """The address without parts that may be secret: user, password and query."""
        return shown_url(self.parts)

    def of(self, name: str) -> str:
        """Return the address of a file in the folder."""
        return urlunsplit(self.parts._replace(path=f"{self.parts.path}/{name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """Search path, download address and cache for weights."""

    path: str | None = None  # A weights file, or a folder of weights files; takes precedence over the other places
    url: str | None = None  # Address of a folder with a manifest; None uses `LIGHTNING_PREDICT_WEIGHTS_URL`
    cache_dir: str | None = None  # Folder for downloads; None: `LIGHTNING_PREDICT_CACHE` or the platform's cache folder
    offline: bool = False  # Whether to avoid the network, even if an address is configured
    allow_http: bool = False  # Whether to allow unencrypted addresses, as `LIGHTNING_PREDICT_ALLOW_HTTP=1` does
    deadline_seconds: float = DEADLINE_SECONDS  # Time limit for all downloads together

    @property
    def address(self) -> Address:
        """The parsed `url`."""
        return address_of(self.url, allow_http=self.allow_http)


AnyWeights = str | PathLike[str] | WeightsSource | None
"""Types of the argument `weights`: a file, a folder, an address or a WeightsSource; None uses the configuration."""


def weights_source(weights: AnyWeights) -> WeightsSource:
    """Convert a `weights` argument to a WeightsSource."""
    if weights is None:
        return WeightsSource()
    if isinstance(weights, WeightsSource):
        if weights.url is not None:
            _ = weights.address
        return weights
    if not isinstance(weights, str | PathLike):
        raise InvalidArgumentError(f"weights={shown(weights)} is not a file, a folder, an address or a WeightsSource.")
    text = fspath(weights)
    if text.split("://", 1)[0].lower() in ("http", "https"):
        source = WeightsSource(url=text)
        _ = source.address
        return source
    return WeightsSource(path=text)


def address_of(
    url: object,
    *,
    allow_http: bool = False,
    what: str = "Weights address",
    expected: str = "the folder that holds manifest.json",
) -> Address:
    """Parse and check an address.

    `what` and `expected` are words of error messages.
    """
    try:
        if not isinstance(url, str):
            raise ValueError("no text")
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidArgumentError(f"{what} {shown(url)} is not usable; expected https://..., {expected}.") from None
    if not is_usable:
        raise InvalidArgumentError(
            f"{what} {shown_url(parts)!r} is not usable; expected https://... (or http://... of this machine), "
            f"{expected}."
        )
    is_allowed = allow_http or os.environ.get(HTTP_VARIABLE) == "1"
    if parts.scheme == "http" and not is_allowed and not _is_loopback(parts.hostname or ""):
        raise InvalidArgumentError(
            f"{what} {shown_url(parts)!r} is not encrypted, so the download could be changed on its way. Give its "
            f"https:// address, or allow it with allow_http=True or {HTTP_VARIABLE}=1."
        )
    return Address(parts._replace(path=parts.path.rstrip("/"), fragment=""))


def shown_url(parts: SplitResult) -> str:
    """Return an address for messages, without user, password, query and fragment."""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
