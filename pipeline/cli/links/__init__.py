"""`stilltide replicate`, `stilltide publish` and `stilltide offset`: links."""
