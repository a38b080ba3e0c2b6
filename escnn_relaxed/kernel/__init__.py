"""Coordinates → hidden values φ → filter bank K; its strict part, its softness and its start."""
