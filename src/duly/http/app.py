"""The application: the table of routes, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..broker.broker import Broker
from .docs import Page
from .endpoint import Home, Resource
from .guard import LOOPBACK, Guard
from .openapi import description
from .problems import Refused, problem_of
from .reply import Reply
from .routes import by_path


def make_app(broker: Broker | Home, *, hosts: Collection[str] = LOOPBACK) -> Starlette:
    """REST on a broker, for requests to one of `hosts`."""
    home = broker if isinstance(broker, Home) else Home(broker)
    routes = [Route(path, Resource(home, endpoints)) for path, endpoints in by_path().items()]
    routes += [
        Route("/openapi.json", Page(Reply.of(description()))),
        Route("/docs", Page.from_file("docs.html")),
        Route("/docs.js", Page.from_file("docs.js")),
        Route("/docs.css", Page.from_file("docs.css")),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
        lifespan=_lifespan(home),
    )
    app.router.redirect_slashes = False
    return app


def _lifespan(home: Home) -> Any:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001
        yield
        home.close()

    return lifespan


async def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _response(problem_of(Refused("unknown_path", "See /docs for what there is.")))


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _response(problem_of(error))


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, reply.headers, reply.kind)
