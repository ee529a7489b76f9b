"""Sandboxes: where hostile code runs."""
