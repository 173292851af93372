"""Configurations and runs that several test files train and sample with."""
