"""What the tests of the axes of the selected log probability share, whichever engine runs them."""
