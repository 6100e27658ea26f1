"""The results of a run as a cube: one row per case, indexed by what was asked for and by what ran."""
