"""The command line: ``marl-connectors train``, ``evaluate``, ``explain`` and ``check``.

Nothing in the library imports this package. It needs the extra ``marl-connectors[cli]``.
"""
