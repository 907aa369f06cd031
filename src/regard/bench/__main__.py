"""`python -m regard.bench`."""

import sys

from regard.bench import main

sys.exit(main())
