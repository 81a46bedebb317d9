"""`python -m daedl_bench`."""

from daedl_bench.cli import app

app(prog_name="python -m daedl_bench")
