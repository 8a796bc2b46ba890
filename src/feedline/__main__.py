"""`python -m feedline`: the `feedline` command, in environments without its script."""

from feedline.cli.start import main

if __name__ == "__main__":  # workers that are spawned import this module, too
    main()
