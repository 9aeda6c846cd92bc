"""Real models and data, from installed packages: nothing is downloaded, nothing is unpickled."""
