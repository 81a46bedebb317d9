"""`python -m daedl`: the command line, where the command itself isn't on the path."""

from daedl.cli import app

app(prog_name="daedl")
