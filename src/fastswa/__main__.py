"""`python -m fastswa`."""

import sys

from fastswa.cli import main

sys.exit(main())
