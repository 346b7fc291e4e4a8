"""Import a newer price list: a SkyPilot catalogue from a file or URL.

The catalogue is validated and then stored under the provider's name in the platform's data folder. Predictions can use
the stored file like any price file. Example::

    catalogs = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
    updated = update_prices(f"{catalogs}/aws/vms.csv")
    updated.path                                # .../lightning-predict/prices/aws.csv
    lp.predict(trace, offers=with_listed(updated.file.offers))
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, final

from lightning_predict.base.checked import DAY, Checked, File
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError
from lightning_predict.base.files import user_folder
from lightning_predict.cost.price_files import CSV_SUFFIX, GENERIC_STEMS, OfferFile, read_sky_offers
from lightning_predict.weights.fetch import Download
from lightning_predict.weights.source import DEADLINE_SECONDS, Address, address_of

MAX_PRICE_BYTES: Final = 1 << 26
"""Size limit of a downloaded catalogue. The largest SkyPilot catalogue has about 10 MB."""

REMEDY: Final = "Check the address and the connection, or download the file yourself and give its path."


@final
@dataclass(frozen=True, slots=True)
class UpdatedPrices:
    """An imported price file.

    Attributes:
        path: Path of the stored file.
        file: Contents of the file.
    """

    path: Path
    file: OfferFile


def update_prices(source: str | os.PathLike[str], *, date: str | None = None) -> UpdatedPrices:
    """Read and validate a SkyPilot catalogue, and store it for later predictions.

    Args:
        source: Path or URL of a CSV file. The URL must use HTTPS or point to this machine.
        date: ISO day of the prices; None uses the file's modification time, or today for a URL.

    Raises:
        InvalidArgumentError: The URL is invalid or not encrypted, or the source is not a CSV file.
        CatalogueError: The source cannot be fetched or read, is not a catalogue, or offers no GPU in our catalogue.
    """
    text = os.fspath(source)
    changed: float | None = None
    if "://" in text:
        address = address_of(text, what="Price address", expected="a SkyPilot catalogue, like .../aws/vms.csv")
        folder, _, name = address.parts.path.rpartition("/")
        provider = _provider(name, folder, address.shown)
        download = Download(
            Address(address.parts._replace(path=folder)), seconds=DEADLINE_SECONDS, error=CatalogueError, remedy=REMEDY
        )
        content = download.content(name, MAX_PRICE_BYTES)
    else:
        path = Path(text).expanduser()
        if not path.is_file():
            raise CatalogueError(f"{text} does not exist; give the CSV file of a SkyPilot catalogue, or its address.")
        provider = _provider(path.name, str(path.resolve().parent), text)
        if path.stat().st_size > MAX_PRICE_BYTES:
            raise CatalogueError(f"{text} has {path.stat().st_size:,} bytes; expected at most {MAX_PRICE_BYTES:,}.")
        content, changed = path.read_bytes(), path.stat().st_mtime
    if date is not None:
        day = Checked(date, File(text, CatalogueError), "date").matching("the day of the prices, like 2026-11-21", DAY)
        changed = datetime.fromisoformat(day).replace(hour=12, tzinfo=timezone.utc).timestamp()
    return _kept(content, provider, changed, text)


def prices_folder() -> Path:
    """Return the folder of imported price files."""
    return user_folder("data") / "prices"


def _kept(content: bytes, provider: str, changed: float | None, source: str) -> UpdatedPrices:
    """Validate the file in a temporary folder, then move the file into place."""
    folder = prices_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        written = Path(beside) / f"{provider}{CSV_SUFFIX}"
        written.write_bytes(content)
        if changed is not None:
            os.utime(written, (changed, changed))
        found = read_sky_offers(written)
        if not found.offers:
            raise CatalogueError(
                f"{source} offers no machine with a GPU of the catalogue; nothing was changed. " + " ".join(found.notes)
            )
        path = folder / written.name
        written.replace(path)
    return UpdatedPrices(path, read_sky_offers(path))


def _provider(name: str, folder: str, source: str) -> str:
    """Return the provider: the file's name, or the folder's name if the file's name is generic."""
    stem, suffix = os.path.splitext(name)
    if suffix.lower() != CSV_SUFFIX:
        raise InvalidArgumentError(f"{source} is not a CSV file; expected a SkyPilot catalogue, like .../aws/vms.csv.")
    named = folder.rstrip("/").rpartition("/")[2] if stem.lower() in GENERIC_STEMS else stem
    if not named.strip("."):
        raise InvalidArgumentError(f"{source} names no provider; expected .../PROVIDER/{name} or PROVIDER{CSV_SUFFIX}.")
    return named
