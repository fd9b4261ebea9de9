"""`stilltide replicate` and `stilltide offset`: links between clusters."""
