"""`xcfg gate`: one exit code for a finished run, and the files that build servers and trackers read."""
