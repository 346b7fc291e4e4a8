"""State of a running fit: measured times, progress, forecast and budget. Independent of the Trainer."""
