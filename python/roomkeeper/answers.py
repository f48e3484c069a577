"""What the servicer's questions and items are answered with when the call as a whole fails."""

from __future__ import annotations

from typing import Any

#: gRPC codes.
INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 3, 5, 8, 9
UNIMPLEMENTED, INTERNAL = 12, 13


def failure(code: int, message: str) -> dict[str, Any]:
    """The call ends with this gRPC code and message."""
    return {"code": code, "message": message}
