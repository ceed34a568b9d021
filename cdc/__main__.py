"""`python -m cdc`."""

import sys

from cdc.cli import main

if __name__ == "__main__":
    sys.exit(main())
