"""Good fakes, and one bad fake for every rule of the contracts; also a starting point for an author's own tests."""
