"""Notices about a budget: an alert of Weights & Biases, and a webhook of a chat or a script.

A notice may be due when no file can be opened, so nothing is imported for it then. Example::

    CostBudget(usd=50, webhook="https://hooks.slack.com/services/...")   # at a warning and at the stop
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lightning_predict.base.files import FILE_SECONDS
from lightning_predict.base.guard import own_error
from lightning_predict.base.timeout import run_unless_hanging
from lightning_predict.observe.rank_agreement import wait_seconds
from lightning_predict.weights.source import address_of

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

WEBHOOK_SECONDS: Final = 10.0  # Timeout in seconds for a webhook's connection and response. Training waits for both.


def check_webhook(webhook: str) -> None:
    """Reject an address of a webhook that is not an https address, or is an address of this machine."""
    import requests  # noqa: F401

    address_of(webhook, what="Webhook", expected="an https address")


def notify(trainer: Trainer, webhook: str | None, *, event: str, reason: str) -> Iterator[str]:
    """Send a notice to Weights & Biases and to a webhook, on rank zero.

    `event` is `warned` or `exceeded`.

    Yields:
        A sentence for every notice that was not sent.
    """
    if not trainer.is_global_zero:
        return
    title, level = f"CostBudget {event}", "ERROR" if event == "exceeded" else "WARN"
    for board in trainer.loggers:
        if "WandbLogger" not in {base.__name__ for base in type(board).__mro__}:
            continue
        alert = partial(_alert, board, title, reason, level)
        try:
            run_unless_hanging(wait_seconds(trainer, FILE_SECONDS), type(board).__name__, alert)
        except Exception as error:  # other people's code, with network access
            own_error(error)
            yield f"{type(board).__name__} could not alert: {type(error).__name__}: {error}"
    if webhook is None:
        return
    content = {"text": f"{title}: {reason}.", "content": f"{title}: {reason}.", "event": event, "reason": reason}
    try:
        longest = wait_seconds(trainer, 2 * WEBHOOK_SECONDS)
        run_unless_hanging(longest, "the webhook", lambda: _post(webhook, content | {"step": trainer.global_step}))
    except Exception as error:  # the address may be secret, so it is not in the message
        own_error(error)
        yield f"CostBudget could not call its webhook: {type(error).__name__}"


def _alert(board: Any, title: str, reason: str, level: str) -> None:
    board.experiment.alert(title=title, text=reason, level=level)


def _post(webhook: str, content: dict[str, Any]) -> None:
    """Send JSON that Slack (`text`) and Discord (`content`) understand."""
    import requests

    # A stream: the body of the answer is not read, because it may have no end.
    with requests.post(webhook, json=content, timeout=WEBHOOK_SECONDS, allow_redirects=False, stream=True) as answer:
        answer.raise_for_status()
