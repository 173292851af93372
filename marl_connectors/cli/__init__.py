"""The command line: ``marl-connectors train`` and ``marl-connectors evaluate``.

Nothing in the library imports this package. It needs the extra ``marl-connectors[cli]``.
"""
