"""Callbacks for training loops other than Lightning's."""
