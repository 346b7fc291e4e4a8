"""Regress the times of past runs on their settings: whole runs (`end_to_end.py`) and single layers (`per_layer.py`)."""
