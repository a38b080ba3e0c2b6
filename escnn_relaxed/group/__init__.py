"""Group elements, grid points and field types as arrays. The other folders know the base space through them alone."""
