"""What a run asks of environments, and the ``StepResult`` in which it gets their data."""
