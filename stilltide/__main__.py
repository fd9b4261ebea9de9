"""`python -m stilltide`: the command `stilltide` in this interpreter."""

from stilltide.pipeline.cli.program import main

main()
