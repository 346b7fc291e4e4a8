"""Costs of a predicted run: memory, price of the machine, energy.

* `memory`: peak memory of a step, and whether the step fits on a GPU.
* `offers`: list prices of GPUs.
* `price_files`: the user's own price lists.
* `price_update`, `current_prices`: download newer prices.
* `prediction`: the price of a run, and the `Prediction` that users get.
* `energy`: kWh and CO2 of a run.
"""
