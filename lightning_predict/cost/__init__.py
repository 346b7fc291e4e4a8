"""Costs of a predicted run: memory, price of the machine, energy.

* `offers`: list prices of GPUs, and the one reader of price files.
* `price_files`: the user's own prices.
* `current_prices`: fetches current prices.
* `prediction`: the price of a run, and the `Prediction` that users get.
* `energy`: kWh and CO2 of a run.
"""
