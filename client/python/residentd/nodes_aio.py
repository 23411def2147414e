"""A client of several nodes for asyncio, see nodes.py."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, List, Optional, Tuple, TypeVar

from . import credentials
from .aio import Connection, Routes
from .credentials import Settings
from .errors import Error
from .nodes import NEXT_NODE, WITH_HANDLES, Nodes, is_spread
from .shared_memory import Memory

T = TypeVar("T")


class _Operation:
    """Where the calls of an operation go, see nodes.py."""

    def __init__(self, owner: "BalancedConnection") -> None:
        self._owner = owner
        self._node = owner.current

    async def route(self, method: str, request: Any, node: bool = False) -> Connection:
        if not node and is_spread(method, request):
            return self._owner
        if self._node is None or method not in WITH_HANDLES:
            self._node = await self._owner.pinned()
        return self._node

    async def session(self) -> Tuple[str, str]:
        self._node = await self._owner.pinned()
        return self._node.open_session


class BalancedConnection(Connection):
    """The connections of a client of several nodes, see nodes.py."""

    def __init__(self, settings: Settings, memory: Memory) -> None:
        super().__init__(settings, lambda: None)
        self._memory = memory
        self._nodes = Nodes(settings)
        self._choosing: Optional[asyncio.Lock] = None
        self.current: Optional[Connection] = None

    async def reach(self) -> None:
        try:
            await self.check_health()
        except Error as error:
            raise credentials.unreachable(error, self._settings) from None

    def begin(self) -> Routes:
        return _Operation(self)

    async def route(self, method: str, request: Any, node: bool = False) -> Connection:
        return await self.begin().route(method, request, node)

    async def session(self) -> Tuple[str, str]:
        return await self.begin().session()

    async def pinned(self) -> Connection:
        """The connection to the node that has the client's state. Chooses one if there is none, or if it has
        left."""
        self._check_loop()
        if self._choosing is None:
            self._choosing = asyncio.Lock()
        async with self._choosing:
            current = self.current
            if current is None or not current.open_session[0]:
                if self._closed:
                    return self  # Its calls raise the error.
                if current is not None:
                    await current.leave()
                self.current = current = await self.find_node(self._connect)
                self._memory.node = current.address
            return current

    async def find_node(self, attempt: Callable[[Settings], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        refused: List[Tuple[str, Error]] = []
        end = loop.time() + self._settings.timeout
        for settings in await loop.run_in_executor(None, self._nodes.settings):
            try:
                found = await attempt(settings)
            except NEXT_NODE as error:
                refused.append((settings.address, error))
                if loop.time() > end:
                    break
            else:
                self._nodes.chosen(settings)
                return found
        raise self._nodes.none(refused)

    async def _connect(self, settings: Settings) -> Connection:
        connection = Connection(settings, self._memory.reset)
        try:
            await connection.reach()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        await super().close()
        if self.current is not None:
            await self.current.close()
