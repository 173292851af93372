"""What algorithms with a replay buffer share: their settings, the turns of sampling and updates, target networks."""
