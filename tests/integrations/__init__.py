"""Tests of the callbacks for other training loops."""
