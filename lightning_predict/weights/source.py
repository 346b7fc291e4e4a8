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


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a folder with a manifest."""

    parts: SplitResult

    @property
    def shown(self) -> str:
        """The address without parts that may be secret: user, password and query."""
        return urlunsplit((self.parts.scheme, self.parts.netloc.rpartition("@")[2], self.parts.path, "", ""))

    def of(self, name: str) -> str:
        """Return the address of a file in the folder."""
        return urlunsplit(self.parts._replace(path=f"{self.parts.path}/{name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """Search path and download address for weights."""

    path: str | None = None  # A weights file, or a folder of weights files; takes precedence over the other places
    url: str | None = None  # Address of a folder with a manifest; None uses `LIGHTNING_PREDICT_WEIGHTS_URL`
    offline: bool = False  # Whether to avoid the network, even if an address is configured

    @property
    def address(self) -> Address | None:
        """The parsed `url`, or that of the environment; None if there is none, or offline."""
        url = self.url or os.environ.get(URL_VARIABLE)
        return address_of(url) if url and not self.offline else None


AnyWeights = str | PathLike[str] | WeightsSource | None
"""Types of the argument `weights`: a file, a folder, an address or a WeightsSource; None uses the configuration."""


def weights_source(weights: AnyWeights) -> WeightsSource:
    """Convert a `weights` argument to a WeightsSource, and check its address."""
    if weights is None:
        return WeightsSource()
    source = weights
    if not isinstance(source, WeightsSource):
        if not isinstance(source, str | PathLike):
            raise InvalidArgumentError(f"weights={shown(source)} is not a file, a folder, an address or WeightsSource.")
        text = fspath(source)
        is_address = text.split("://", 1)[0].lower() in ("http", "https")
        source = WeightsSource(url=text) if is_address else WeightsSource(path=text)
    if source.url is not None:
        address_of(source.url)
    return source


def address_of(url: str) -> Address:
    """Parse and check an address: https, or http of this machine, or any if the environment allows it."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidArgumentError(
            "The address of weights is not usable; expected https://..., the folder that holds manifest.json."
        )
    address = Address(parts._replace(path=parts.path.rstrip("/"), fragment=""))
    if parts.scheme == "http" and os.environ.get(HTTP_VARIABLE) != "1" and not _is_loopback(parts.hostname or ""):
        raise InvalidArgumentError(
            f"The address of weights {address.shown!r} is not encrypted, so the download could be changed on its way. "
            f"Give its https:// address, or allow it with {HTTP_VARIABLE}=1."
        )
    return address


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
