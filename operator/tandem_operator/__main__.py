"""`python -m tandem_operator` is `tandem-operator`."""

from tandem_operator.main import main

main()
