"""`python -m pipeline.cli`: the command `stilltide` of this very interpreter."""

from pipeline.cli.main import main

main()
