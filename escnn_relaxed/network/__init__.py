"""Whole networks: relaxed, hardened, exported."""
