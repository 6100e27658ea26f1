"""One contract class per kind of plugin. A subclass named Test… gives a few attributes and inherits the tests."""
