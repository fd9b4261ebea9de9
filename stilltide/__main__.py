"""`python -m stilltide`: the command `stilltide` of this very interpreter."""

from stilltide.pipeline.cli.main import main

main()
