"""The backend whose every choice is an option: one factor of the selected log probability at a time, on one process."""
