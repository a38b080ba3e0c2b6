"""``python -m escnn_relaxed.experiments``."""

from .command_line import main

if __name__ == "__main__":
    main()
