"""`stilltide topics`: the topics that Stilltide needs."""
