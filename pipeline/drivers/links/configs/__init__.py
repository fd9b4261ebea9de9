"""How the configs of topics follow those of the source."""
