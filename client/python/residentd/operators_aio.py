"""operators.py for asyncio: calls are awaited.

Made of operators.py by tools/async_front; change it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional

from .operators import (Bake, Event, Installed, OperatorInfo, activate_steps, audit_steps, describe_steps,
                        install_steps, list_steps, promote_steps, publish_options, remove_steps,
                        rollback_steps)

if TYPE_CHECKING:
    from .aio import Client


class Operators:
    """The operators of a daemon, for asyncio.

    Common errors: NotFound (operator or version), FailedPrecondition (built in, no suitable version,
    quarantined), Aborted (expected_revision is not the current one), PermissionDenied.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list(self) -> List[OperatorInfo]:
        """All operators, sorted by name."""
        return await self._client._drive(list_steps())

    async def describe(self, name: str) -> OperatorInfo:
        """One operator and its versions."""
        return await self._client._drive(describe_steps(name))

    async def install(self, name: str, **options: Any) -> Installed:
        """Installs a version of an operator.

        expr: a formula; source: C++ (the text), with `files` for further ones by name; bytecode: a FLUX
        program; object_file: the path of PTX or a cubin. Exactly one of them.
        signature, split, summary: see docs/operators.md; an expression needs none.
        label: a name under which calls can run the version, see Client.op; the version that has it loses it.
        examples: Examples on which the version is validated.
        wait: "validated" (nothing is kept), "loaded" (default), "active".
        native: of bytecode: "follows" (native code follows in the background), "wait" (until it
        serves), "off" (the interpreter runs it).
        isolation: "trusted", "stoppable" (InvalidArgument if the operator does not pass); "": the daemon's
        --isolation, see OperatorInfo.isolation.
        allow_spills, task_time_ms, scratch_bytes, expected_revision.
        force: also if the set of --operators_dir lists the operator (otherwise FailedPrecondition).
        timeout: seconds; None: 300, because the validation of a version may take minutes.

        InvalidArgument if the version is refused; details["log"] has the compiler's output.
        """
        installed = await self._client._drive(
            install_steps(name, self._client._operations.forget, **options))
        return installed

    async def publish(self, function: Callable[..., Any], name: str = "", **options: Any) -> Installed:
        """Installs a Python function of NumPy expressions as an expression, see expression.py.

        Its parameters are inputs, in their order; one with a number as its default is a scalar. name: the
        function's name if empty. The options are those of install.
        """
        return await self.install(**publish_options(function, name, options))

    async def activate(self, name: str, version: int = 0, *, expected_revision: Optional[int] = None,
                       force: bool = False, bake: Optional[Bake] = None) -> int:
        """Makes a loaded or previous version the active one; 0: the standby. Returns the version.

        force: also a quarantined version, and an operator that the set of the daemon's --operators_dir lists.
        """
        return int((await self._client._drive(
            activate_steps(name, version, expected_revision, force, bake))).version)

    async def rollback(self, name: str, *, expected_revision: Optional[int] = None) -> int:
        """Makes the previous version active again. Returns it."""
        return int((await self._client._drive(rollback_steps(name, expected_revision))).version)

    async def promote(self, name: str, version: int = 0, *, traffic_percent: float = 0.0,
                      shadow_percent: float = 0.0, expected_revision: Optional[int] = None,
                      bake: Optional[Bake] = None) -> int:
        """Gives the standby version a share of the traffic, or a shadow of it. Returns the revision."""
        return await self._client._drive(
            promote_steps(name, version, traffic_percent, shadow_percent, expected_revision, bake))

    async def remove(self, name: str, *, expected_revision: Optional[int] = None, force: bool = False,
                     timeout: Optional[float] = None) -> int:
        """Removes an installed operator with all versions. Returns the revision.

        force: also one that the set of the daemon's --operators_dir lists.
        """
        return await self._client._drive(
            remove_steps(name, self._client._operations.forget, expected_revision, force, timeout))

    async def audit(self, name: str = "", count: int = 0, before_revision: int = 0) -> List[Event]:
        """Past changes, the newest first."""
        return await self._client._drive(audit_steps(name, count, before_revision))
