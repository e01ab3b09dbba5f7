"""`python -m tools.cluster`."""

from tools.cluster.cli import main

if __name__ == "__main__":
    main()
