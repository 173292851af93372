"""Training to a goal: ``Algorithm.fit``, and what the command line shares with it."""
