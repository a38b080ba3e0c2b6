"""``python -m experiments``."""

from .command_line import main

if __name__ == "__main__":
    main()
