"""Policies that see and act: chunks of robot actions as seven tokens of a residual code."""
