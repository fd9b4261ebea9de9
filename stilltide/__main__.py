"""`python -m stilltide`: the command `stilltide` in this interpreter."""

from stilltide.pipeline.cli.main import main

main()
