"""How accurate the predictions are on published times: `python -m benchmarks.accuracy FOLDER`."""
