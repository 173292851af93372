"""Formulas as pure functions: advantages, PPO's loss and schedules."""
