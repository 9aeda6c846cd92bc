"""The last few results by what they were asked with, so that another head costs nothing."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A cache of so many results; asked with plain data. A process uses it from one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[str, T] = OrderedDict()

    def get(self, asked: Mapping[str, Any], make: Callable[[], T]) -> T:
        """Return what was made for this, or make it."""
        key = json.dumps(asked, sort_keys=True, default=str)
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        made = self._held[key] = make()
        while len(self._held) > self.most:
            self._held.popitem(last=False)
        return made
