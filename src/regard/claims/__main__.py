"""`python -m regard.claims`: the same as `regard claims`."""

import sys

from regard.cli import main

if __name__ == "__main__":
    main(["claims", *sys.argv[1:]])
