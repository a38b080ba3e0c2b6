"""The paper's experiments, from the files of a data set to the paper's tables.

They run from the root of the repository, with the packages of ``requirements.txt``::

    python -m experiments rows                                                  # list the rows of the tables
    python -m experiments train se2-4-soft --data DIRECTORY --seed 0            # train one
    python -m experiments sweep se2-4-soft relax.rotation=0,1 --data DIRECTORY  # choose its ω′ on validation images
    python -m experiments run small --data DIRECTORY                            # train all rows of a plan
    python -m experiments report runs                                           # write the tables

Data flow one way, a stage a file: files on disk (data_files.py, mnist_files.py, cifar_files.py) → training, validation
and test images (tasks.py) → batches (batches.py) → augmented and normalised on the device (augmentation.py) → a network
and its loss (module.py) → a run that can be killed and goes on (training.py, epoch_metrics.py) → the log of results
(benchmarks/shared/run_log.py) → tables (report.py). Rows of the paper's tables are in rows.py, each with its
configuration (configuration.py) and what was published of it (published.py); a plan of many runs is a file of
``plans/`` (plans.py).
"""
