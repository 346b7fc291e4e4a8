"""From timed work to a step: a host and its device simulated together, and what bounds them."""
