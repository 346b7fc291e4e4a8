"""Summary of a predicted run to paste into a pull request or a model card.

Hugging Face's model cards have a field for emissions, in grams, with the place and hardware of the training. The
summary marks its values as predicted.
"""

from __future__ import annotations

import json

from lightning_predict.base.escaping import markdown_text
from lightning_predict.base.units import kilograms_to_grams
from lightning_predict.cost.prediction import Prediction
from lightning_predict.reports.format import duration, duration_interval, significant, usd, usd_per_hour


def model_card(prediction: Prediction, *, place: str | None = None, command: str | None = None) -> str | None:
    """Return hardware, time, cost and emissions as Markdown with the fields of a model card.

    Returns:
        The text; None if the length of the run is unknown.
    """
    if prediction.remaining is None:
        return None
    count = prediction.num_gpus
    hardware = prediction.layout.gpu.name if count == 1 else f"{count} x {prediction.layout.gpu.name}"
    price = "" if prediction.usd_per_hour is None else usd_per_hour(prediction.usd_per_hour)
    rented = ", ".join(text for text in (price, prediction.offer or "") if text)
    kilowatt_hours, kilograms = prediction.kilowatt_hours, prediction.co2_kilograms
    grams = None if kilograms is None else kilograms_to_grams(kilograms)
    amounts = [
        duration_interval(prediction.remaining),
        "" if prediction.cost_usd is None else usd(prediction.cost_usd),
        "" if kilowatt_hours is None else f"{significant(kilowatt_hours)} kWh",
        "" if grams is None else f"{significant(grams)} g CO2" + ("" if place is None else f" ({place})"),
    ]
    lines = [
        f"- **Hardware:** {hardware}" + (f" ({markdown_text(rented)})" if rented else ""),
        f"- **Predicted:** {', '.join(amount for amount in amounts if amount)}",
        *([] if command is None else [f"- **By:** `{command}`"]),
        "",
        "```yaml",
        f"training_time: {json.dumps(duration(prediction.remaining.middle))}",
    ]
    if grams is not None:
        fields = {"geographical_location": place, "hardware_used": hardware}
        lines += ["co2_eq_emissions:", f"  emissions: {grams:.4g}", "  source: predicted by lightning-predict"]
        lines += [f"  {name}: {json.dumps(words)}" for name, words in fields.items() if words is not None]
    return "\n".join([*lines, "```"])
