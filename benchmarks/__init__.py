"""Measurements for the pages of results, run from the root of the repository.

python -m benchmarks.accuracy              # ways to use or to break a symmetry: accuracy, and on turned inputs
python -m benchmarks.nbody                 # charged particles: clouds under gravity and above a wall
python -m benchmarks.discovery             # how often a broken symmetry is found
python -m benchmarks.volumes.buoyancy      # forecasts of a flow in space
python -m benchmarks.speed.performance     # times and memory
"""
