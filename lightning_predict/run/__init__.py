"""The rest of a run: its remaining steps, how long they take, and corrections from the history of earlier runs."""
