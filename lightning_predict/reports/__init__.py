"""Output of predictions: tables, rankings, HTML, loggers, and SkyPilot tasks.

* `predictions`: the mapping GPU name -> `Prediction` that `predict` returns.
* `format`: numbers for display (`3 h 12 min`, `$12.3`).
* `table`: columns and footnotes, and plain-text, rich and Markdown tables made from them.
* `ranking`: cheapest GPU, fastest GPU, cheapest GPU within a deadline.
* `html`: the report as one HTML file.
* `loggers`: sends predictions to the loggers of a Trainer, or writes a JSON file.
* `sky`: the SkyPilot task that rents the machine.

No module here imports torch or Lightning. rich is imported only by the functions that draw with it.
"""
