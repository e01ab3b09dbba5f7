"""`python -m tandem_serve` is `tandem`."""

from tandem_serve.cli import main

if __name__ == "__main__":
    main()
