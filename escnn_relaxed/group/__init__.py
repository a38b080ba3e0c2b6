"""Group elements, grid points and field types as arrays: all that the rest knows of the plane."""
