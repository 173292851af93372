"""Adapters that give every kind of environment the methods of a parallel or of a natively batched environment."""
