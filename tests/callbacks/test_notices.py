"""Notices of a budget: a webhook on the loopback, and alerts of Weights & Biases."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.callbacks import CostBudget
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.testing import Clock
from tests.callbacks.small import Small
from tests.callbacks.test_cost_budget import fit, timed_model


@contextlib.contextmanager
def listening(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of a server on the loopback, and the JSON that it gets."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name)
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-token", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.filterwarnings("ignore:CostBudget")
@pytest.mark.parametrize(("usd", "event"), [(12.0, "warned"), (8.5, "exceeded")])
def test_a_webhook_is_called_at_80_percent_and_at_the_stop(
    usd: float, event: str, lightning: Small, tmp_path: Path, time: Clock
) -> None:
    with listening() as (url, got):
        budget = CostBudget(usd=usd, usd_per_hour=3600, webhook=url)  # a dollar a second, ten batches of a second
        fit(lightning, tmp_path, budget, model=timed_model(lightning, time))
    *earlier, notice = got
    assert {notice["event"] for notice in earlier} <= {"warned"}  # of $8.50, 80 % were used before
    assert notice["event"] == event
    assert notice["text"] == notice["content"] == f"CostBudget {event}: {notice['reason']}."
    if event == "exceeded":
        assert notice["reason"] == budget.stopping_reason
    else:
        assert "of $12.00 (usd) are used" in notice["reason"]


def test_a_webhook_that_fails_is_said_without_its_secret(lightning: Small, tmp_path: Path) -> None:
    with listening(status=500) as (url, got):
        budget = CostBudget(usd=1e-9, usd_per_hour=1, on_exceed="warn", webhook=url)
        with pytest.warns(LightningPredictWarning) as warned:
            model = fit(lightning, tmp_path, budget)
    assert model.batches_trained == 10
    (said,) = (str(warning.message) for warning in warned if "webhook" in str(warning.message))
    assert said == "CostBudget could not call its webhook: HTTPError"
    assert len(got) == 1


def test_answer_of_a_webhook_is_not_read(lightning: Small, tmp_path: Path) -> None:
    # A body without an end was read for 20 s, 2 GiB of it.
    sent = 0
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            nonlocal sent
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while sent < 1 << 30:
                    sent += connection.send(b"0" * 65536)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.warns(LightningPredictWarning):  # that the budget is exceeded
            fit(lightning, tmp_path, CostBudget(usd=1e-9, usd_per_hour=1, on_exceed="warn", webhook=url))
        thread.join()
    assert sent < 1 << 24  # what fits into buffers


@pytest.mark.parametrize("webhook", ["http://example.org/hook", "hooks.slack.com/x", "ftp://example.org"])
def test_a_webhook_must_be_encrypted(webhook: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Webhook"):
        CostBudget(usd=1, webhook=webhook)


def test_weights_and_biases_gets_an_alert(lightning: Small, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    alerts: list[dict[str, str]] = []

    class Experiment:
        def alert(self, **words: str) -> None:
            alerts.append(words)

    class WandbLogger(lightning.lightning.loggers.CSVLogger):  # type: ignore[misc,name-defined]
        @property
        def experiment(self) -> Any:
            return Board(super().experiment)

    class Board:
        """The CSV's experiment, which alerts, too."""

        def __init__(self, files: Any) -> None:
            self._files, self.alert = files, Experiment().alert

        def __getattr__(self, name: str) -> Any:
            return getattr(self._files, name)

        def log(self, values: dict[str, Any], *, commit: bool) -> None:
            assert not commit

    budget = CostBudget(usd=1e-9, usd_per_hour=1)
    fit(lightning, tmp_path, budget, logger=WandbLogger(tmp_path))
    assert alerts == [{"title": "CostBudget exceeded", "text": budget.stopping_reason, "level": "ERROR"}]
