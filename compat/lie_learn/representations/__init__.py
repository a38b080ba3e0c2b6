"""Representations of SO(3)."""
