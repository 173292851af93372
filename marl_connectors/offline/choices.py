"""What readers and writers of recorded episodes can be asked for."""

from __future__ import annotations

from typing import Final

SHUFFLED: Final = "shuffled"
IN_ORDER: Final = "in_order"
AS_RECORDED: Final = "as_recorded"
ORDERS: Final = (SHUFFLED, IN_ORDER, AS_RECORDED)
"""The orders in which episodes are read."""
DEFAULT_FILE_SIZE: Final = 64 * 2**20
"""The bytes after which another file is begun."""
UNSTORABLE_INFOS: Final = ("error", "drop")
"""What happens to values of infos that no file can hold."""
