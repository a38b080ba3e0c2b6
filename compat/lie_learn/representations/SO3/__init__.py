"""The function that escnn imports is in ``wigner_d``."""
