"""Measurements for the pages of results, run from the root of the repository.

python -m benchmarks.symmetry              # ways to use or to break a symmetry, in what they get right
python -m benchmarks.volumes.buoyancy      # forecasts of a flow in space
python -m benchmarks.speed.performance     # times and memory
"""
