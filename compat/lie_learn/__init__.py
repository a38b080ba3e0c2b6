"""Stand-in for lie_learn with what escnn imports of it alone: never upload it, it bears another project's name."""
