"""Modules for tests, and recurrent PPO as a slow reference."""
