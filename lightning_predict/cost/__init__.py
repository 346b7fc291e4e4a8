"""Say what a predicted run needs and costs: its memory, the price of its machine, its energy.

* `memory`: the peak of a step, and whether it fits in a GPU.
* `offers`: what GPUs rent for, as listed; `price_files`: price lists of the user's own; `price_update`: newer ones,
  fetched.
* `prediction`: a run at a price, and the `Prediction` that users get.
* `energy`: kWh and CO2 of a run.
"""
