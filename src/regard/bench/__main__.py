"""`python -m regard.bench`."""

import sys

from regard.bench.command import main

sys.exit(main())
