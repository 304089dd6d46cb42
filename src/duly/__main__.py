"""python -m duly: the command line, for whoever has no `duly` on the path."""

from .cli.main import app

app(prog_name="duly")
