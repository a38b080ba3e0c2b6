"""The paper's experiments, from the files of a data set to its tables. The extra ``experiments`` has what they need.

    python -m escnn_relaxed.experiments rows
    python -m escnn_relaxed.experiments train se2-4-soft --data DIRECTORY --seed 0
    python -m escnn_relaxed.experiments runtimes
    python -m escnn_relaxed.experiments report

Data flows one way, a stage a file: files on disk (data_files.py, mnist_files.py, cifar_files.py) → training, validation
and test images (tasks.py) → batches (batches.py) → augmented and normalised on the device (augmentation.py) → a network
and its loss (module.py) → a run that can be killed and goes on (training.py, epoch_log.py) → tables (report.py). A row
of the paper's tables is a file of ``configurations/`` (configuration.py).
"""
