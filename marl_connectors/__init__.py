"""Multi-agent simulation and training on PettingZoo, with connector pipelines.

Every public name can be imported from here; see ``__init__.pyi`` for the list. What a name needs (torch, for example)
is imported when the name is first used.
"""

import sys

import lazy_loader

from marl_connectors.import_paths import NothingFound, RLlibPaths

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
sys.meta_path[:] = [RLlibPaths(), *sys.meta_path, NothingFound()]
del lazy_loader, sys, NothingFound, RLlibPaths
