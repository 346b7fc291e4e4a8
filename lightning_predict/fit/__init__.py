"""One account of a run: what was seen, what is believed, what is left. It knows no Trainer."""
