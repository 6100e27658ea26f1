"""Find the configuration difference that makes rollout and training log probabilities drift: schema, planner, runner, comparator, store, plugins and command line."""
