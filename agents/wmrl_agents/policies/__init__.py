"""Policies: what samples and what is trained."""
