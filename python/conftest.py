"""Tests have a cache of their own: what they measure beside other work is not kept."""

import atexit
import os
import shutil
import tempfile

os.environ["HYPATIA_CACHE"] = tempfile.mkdtemp(prefix="hypatia-tests-")
atexit.register(shutil.rmtree, os.environ["HYPATIA_CACHE"], ignore_errors=True)
