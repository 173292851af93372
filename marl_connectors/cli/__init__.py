"""The command line: ``marl-connectors train``, ``evaluate``, ``explain``, ``check`` and ``zoo``.

Nothing in the library imports this package. It needs the extra ``cli``.
"""
