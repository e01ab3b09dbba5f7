"""`make test` and its areas: which tests run, in which order, and what is said at the end.

python -m tools.suite                     what `make test` runs
python -m tools.suite --all               every area, one after the other
python -m tools.suite operator ranks      these areas
python -m tools.suite --changed           the areas that the change since main asks for
python -m tools.suite --list              the areas, with what each holds
"""
