"""Observes a running fit: measured times, progress, forecast and budget. Nothing here depends on a Trainer."""
