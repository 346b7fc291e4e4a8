"""Regression: predicts the time of a run from the times of past runs with other settings."""
