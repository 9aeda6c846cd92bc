"""These tests need the distribution installed: without it there is nothing here to run.

A run of the project's own tests leaves them out; ``tests/test_authoring.py`` installs the
distribution into a folder of its own and runs them there.
"""

from importlib.util import find_spec

collect_ignore = [] if find_spec("attnreg_sparsemax") else ["tests"]
