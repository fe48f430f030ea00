"""A simulated device: tokens by a hash of the true history, time by a model. Oracle for tests, planner for people."""
