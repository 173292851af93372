"""What algorithms with a policy and a value function have in common."""
