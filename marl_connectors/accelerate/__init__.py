"""Accelerators: code that makes the library faster, and changes nothing else.

``marl_connectors/accelerators.py`` is the only file that imports this folder. Without the folder, modules,
distributions, losses and autograd compute everything themselves.
"""
