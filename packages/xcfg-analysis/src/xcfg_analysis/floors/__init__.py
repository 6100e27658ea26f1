"""What the baseline differs by when nothing was changed: the resolution of a run."""
