"""Which status of Flight's stands for which of our errors: the one table."""

from __future__ import annotations

from typing import Any

from pyarrow import flight

from ..errors import Error
from ..wire.faults import to_fault
from ..wire.operations import encode

# gRPC knows few; the code in the fault is what tells errors apart.
STATUSES: dict[str, Any] = {
    "error": flight.FlightServerError,
    "invalid_argument": flight.FlightServerError,
    "limit_exceeded": flight.FlightServerError,
    "not_found": flight.FlightServerError,
    "topic_not_found": flight.FlightServerError,
    "group_not_found": flight.FlightServerError,
    "message_not_found": flight.FlightServerError,
    "tenant_not_found": flight.FlightServerError,
    "push_not_found": flight.FlightServerError,
    "principal_not_found": flight.FlightServerError,
    "key_not_found": flight.FlightServerError,
    "schedule_not_found": flight.FlightServerError,
    "conflict": flight.FlightServerError,
    "topic_exists": flight.FlightServerError,
    "group_exists": flight.FlightServerError,
    "push_exists": flight.FlightServerError,
    "topic_not_empty": flight.FlightServerError,
    "tenant_exists": flight.FlightServerError,
    "schedule_exists": flight.FlightServerError,
    "tenant_not_empty": flight.FlightServerError,
    "stale_version": flight.FlightServerError,
    "store_exists": flight.FlightServerError,
    "publish_error": flight.FlightServerError,
    "publish_unknown": flight.FlightUnavailableError,
    "consume_error": flight.FlightServerError,
    "lease_lost": flight.FlightServerError,
    "offset_truncated": flight.FlightServerError,
    "time_limit": flight.FlightServerError,
    "unavailable": flight.FlightUnavailableError,
    "busy": flight.FlightUnavailableError,
    "timeout": flight.FlightTimedOutError,
    "store_full": flight.FlightUnavailableError,
    "not_ready": flight.FlightUnavailableError,
    "closed": flight.FlightUnavailableError,
    "store_error": flight.FlightInternalError,
    "corrupt_backup": flight.FlightInternalError,
    "corrupt_block": flight.FlightInternalError,
    "incompatible_store": flight.FlightInternalError,
    "sealed": flight.FlightInternalError,
    "lake_error": flight.FlightInternalError,
    "lake_taken": flight.FlightInternalError,
    "corrupt_lake": flight.FlightInternalError,
    "incompatible_lake": flight.FlightInternalError,
    "unauthenticated": flight.FlightUnauthenticatedError,
    "denied": flight.FlightUnauthorizedError,
    "tenant_suspended": flight.FlightUnauthorizedError,
    "quota_exceeded": flight.FlightUnavailableError,
    "operation_exhausted": flight.FlightUnavailableError,
}


def to_status(error: Exception) -> Exception:
    """The status to end a call with; our error is inside."""
    fault = to_fault(error)
    kind = STATUSES[fault.code] if isinstance(error, Error) else flight.FlightInternalError
    status: Exception = kind(fault.message, extra_info=encode(fault))
    return status
