"""The same small site as a WSGI application with Flask, with Django, and with neither."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from flask import Flask, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    Answer = Callable[[str], tuple[int, str]]
    """Returns the status and the text of a page by its path."""


def plain(answer: Answer) -> WSGIApplication:
    """Use no framework."""

    def app(environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, text = answer(environment["PATH_INFO"].lstrip("/"))
        start_response(f"{status} Said", [("Content-Type", "text/plain")])
        return [text.encode()]

    return app


def with_flask(answer: Answer) -> WSGIApplication:
    """Use a route of Flask's."""
    app = Flask(__name__)

    def page(path: str) -> Response:
        status, text = answer(path)
        return Response(text, status, mimetype="text/plain")

    app.add_url_rule("/<path:path>", view_func=page)
    return app


def with_django(answer: Answer) -> WSGIApplication:
    """Use a view of Django's, and its handler for WSGI."""
    # Django has no types.
    settings: Any = import_module("django.conf").settings
    http: Any = import_module("django.http")
    path: Any = import_module("django.urls").path

    def view(_: object, page: str) -> object:
        status, text = answer(page)
        return http.HttpResponse(text, status=status, content_type="text/plain")

    urls = (path("<path:page>", view),)
    settings.configure(ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=urls, SECRET_KEY="of a test")
    get_wsgi_application: Any = import_module("django.core.wsgi").get_wsgi_application
    return cast("WSGIApplication", get_wsgi_application())


FRAMEWORKS = {"plain": plain, "flask": with_flask, "django": with_django}
