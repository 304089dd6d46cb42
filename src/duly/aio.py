"""duly.aio: Duly for asyncio programs. The names are those of duly.Client; see duly/client/aio.py."""

from __future__ import annotations

from .client.aio import Batch, Client, Delivery, Settled, connect

__all__ = ["Batch", "Client", "Delivery", "Settled", "connect"]
