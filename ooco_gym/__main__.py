"""`python -m ooco_gym` is `ooco-gym`."""

from __future__ import annotations

import sys

from ooco_gym.cli.main import main

sys.exit(main())
