"""Repeats tests on a machine that is made slow and uneven, and says which of them fail by chance.

    python -m tools.steadiness tests/integration/hostile --times 20 --load 4
    python -m tools.steadiness tests/unit/serve/pod --times 1 --load 4 --seed 17   # run 17 again

A test that fails here and passes alone is a fault of the test, or a race of the product.
"""
