"""Measurements of the cost and the worth of relaxed layers. From the root of the repository, one command a module::

    python -m benchmarks.speed.performance     # time, memory and operations of layers and networks
    python -m benchmarks.accuracy.ways         # trained networks of each way to relax
    python -m benchmarks.smoke.levels          # ways to relax on smoke whose symmetry is broken

``shared/`` holds what several of them need: tasks, networks, the training loop, timing and the log of runs.
``results/`` holds results of ``experiments/``. The docstring of each module gives its command.
"""
